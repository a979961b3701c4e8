"""The one tree of errors. Each says what happened, to what, and what to do next.

EverywattError
├── UsageError          a wrong argument, unit or option            exit 2
├── ConfigError         a setting that cannot be read               exit 2
├── RunNotFound         no run of that name                         exit 2
├── RunExists           a recording would have been overwritten     exit 2
├── MissingExtra        an optional library is not installed        exit 2
├── ScopeError          two figures do not cover the same thing     exit 3
├── MeasurementRefused  there is no figure, and here is why         exit 3
├── NoSensor            nothing on this machine measures power      exit 4
├── SensorError         one sensor failed (never ends a run)        exit 3
├── TapeError           a tape cannot be written or read            exit 3
│   ├── NotATape        the file is something else                  exit 3
│   ├── TapeDamaged     bytes were changed or lost                  exit 3
│   └── TapeTooNew      written by a later everywatt                exit 3
├── RecorderError       the recorder did not start or answer        exit 3
├── NetworkError        a server did not answer as it should        exit 3
└── SimError            the simulated machine cannot be made        exit 2
"""

from __future__ import annotations


class EverywattError(Exception):
    """Base of all errors. `cure` is the next thing to try, or None."""

    exit_code = 1

    def __init__(self, message: str, *, cure: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure

    def __str__(self) -> str:
        return f"{self.message} Try: {self.cure}" if self.cure else self.message


class UsageError(EverywattError):
    """An invalid argument, unit or option."""

    exit_code = 2


class ConfigError(EverywattError):
    """A setting or configuration file that cannot be read."""

    exit_code = 2


class RunNotFound(EverywattError):
    """No run has that name or path."""

    exit_code = 2


class RunExists(EverywattError):
    """A recording would have been overwritten; recordings never are."""

    exit_code = 2


class MissingExtra(EverywattError):
    """An optional library is needed and not installed."""

    exit_code = 2

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed.", cure=f"pip install 'everywatt[{extra}]'")


class ScopeError(EverywattError):
    """Two figures of different scope were added or compared."""

    exit_code = 3


class MeasurementRefused(EverywattError):
    """No trustworthy figure can be given; the message has the reason."""

    exit_code = 3


class NoSensor(EverywattError):
    """No sensor on this machine measures power, and estimates are disabled."""

    exit_code = 4


class SensorError(EverywattError):
    """One sensor could not be read. It becomes a gap in the tape and a note in the report."""

    exit_code = 3


class TapeError(EverywattError):
    """A tape cannot be written or read."""

    exit_code = 3


class NotATape(TapeError):
    """The file exists but is not a tape."""


class TapeDamaged(TapeError):
    """Bytes of a tape were changed or lost; the message says which part."""


class TapeTooNew(TapeError):
    """The tape was written by a later version."""


class RecorderError(EverywattError):
    """The recorder process did not start or stopped responding."""

    exit_code = 3


class NetworkError(EverywattError):
    """A server could not be reached, or its response was not valid.

    kind    name, connect, connect-timeout, timeout, tls, certificate, protocol, cut (the connection ended early),
            damaged (compressed data), too-large or redirect
    server  its address, without secrets
    reason  the same as the message, without the server
    """

    exit_code = 3

    def __init__(self, kind: str, server: str, reason: str, *, cure: str | None = None) -> None:
        super().__init__(f"{server}: {reason}.", cure=cure)
        self.kind, self.server, self.reason = kind, server, reason


class SimError(EverywattError):
    """The simulated machine cannot be created."""

    exit_code = 2
