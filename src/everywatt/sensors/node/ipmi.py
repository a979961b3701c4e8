"""Power of the whole machine from its BMC by IPMI DCMI: ipmitool, else FreeIPMI's ipmi-dcmi.

Only the instantaneous reading is used. The "average" of most BMCs is since their last reset, which may be weeks ago.
`deactivated` says nothing about the reading beside it.
"""

from __future__ import annotations

import re
import shutil

from everywatt.core.channels import Domain
from everywatt.core.errors import SensorError
from everywatt.sensors.meters import CommandMeters, PolledGroup, first_line, power_channel

_READING = re.compile(
    r"^[ \t]*(?:Instantaneous power reading|Current Power)[ \t]*:[ \t]*"
    r"(\d{1,6}(?:\.\d{1,6})?)[ \t]*(?:watts?|w)[ \t\r]*$",
    re.IGNORECASE | re.MULTILINE,
)
_COMMANDS = {
    "ipmitool": ("dcmi", "power", "reading"),
    "ipmi-dcmi": ("--get-system-power-statistics",),
}


def parse_dcmi(text: str) -> float:
    """Watts from the output of ipmitool, FreeIPMI or ipmiutil. SensorError where it holds no reading, or several."""
    found = {float(match[1]) for match in _READING.finditer(text)}
    if not found:
        raise SensorError(f"The BMC returns no power reading: {first_line(text)}.")
    if len(found) > 1:
        raise SensorError("The BMC's response contains several readings.")
    (watts,) = found
    if watts == 0:
        raise SensorError("The BMC reads 0 W of a running machine, so it does not measure power.")
    return watts


class Ipmi(CommandMeters):
    """The sensor. Options: local (true: this machine's own BMC), or host, user and password_file; command; interface.

    Without options it takes part where it is named.
    """

    name = "ipmi"
    needs = "local or host"
    period_s = 2.0

    def configured(self) -> bool:
        return self.named or bool(self.options.get("local") or self.options.get("host"))

    def meters(self) -> list[PolledGroup]:
        command, environ = self._command()

        channel = power_channel("bmc", Domain.PSU, self.facts(quantum=1.0))
        label = str(self.options.get("host") or "this machine's BMC")
        return [self.meter([channel], lambda: (parse_dcmi(self.output(command, environ)),), label)]

    def _command(self) -> tuple[list[str], dict[str, str]]:
        path = self.machine.environ.get("PATH", "")
        asked = self.options.get("command")
        names = [str(asked)] if asked else list(_COMMANDS)
        binary = next((found for name in names if (found := shutil.which(name, path=path))), None)
        if binary is None:
            raise SensorError(f"{' or '.join(names)} was not found on the PATH.", cure="install ipmitool")
        kind = "ipmi-dcmi" if binary.endswith("ipmi-dcmi") else "ipmitool"
        environ = dict(self.machine.environ)
        host = self.options.get("host")
        if not host:
            return [binary, *_COMMANDS[kind]], environ
        if kind != "ipmitool":
            raise SensorError("A BMC on the network requires ipmitool.", cure="install ipmitool")
        login = self.login()
        if login is None:
            raise SensorError(
                "A BMC on the network requires user and password_file.", cure=f"[sensor.{self.name}] user"
            )
        if str(host).startswith("-") or login.user.startswith("-"):
            raise SensorError("host and user must not begin with '-'.")
        interface = str(self.options.get("interface", "lanplus"))
        environ["IPMI_PASSWORD"] = login.password  # not an argument: all users can read those
        return [binary, "-I", interface, "-H", str(host), "-U", login.user, "-E", *_COMMANDS[kind]], environ
