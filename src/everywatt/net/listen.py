"""Where to listen, what that takes, and the names that a browser may call it by."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from everywatt.core.errors import UsageError
from everywatt.net.guard import Access
from everywatt.net.tls import check_tls, read_token

DEFAULT = "127.0.0.1:8765"
BACKLOG = 4096  # or what the kernel allows: who finds it full tries again after a whole second
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on. `host` is as it was asked for, `ip` what it means."""

    host: str
    ip: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.ip).is_loopback

    @property
    def everywhere(self) -> bool:
        """Whether it is every address of the machine."""
        return ipaddress.ip_address(self.ip).is_unspecified


def parse_listen(text: str) -> Address:
    """`127.0.0.1:8765`, `[::1]:8765`, `name:8765`, or a port alone, which is on loopback. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host = "127.0.0.1"
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or not port.isascii() or int(port) > 65535 or not host:
        raise UsageError(f"'{text}' is not an address to listen on.", cure=f"--listen {DEFAULT}")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise UsageError(f"'{host}' is neither an address nor a known host name.", cure=f"--listen {DEFAULT}") from None
    ips = [str(entry[4][0]) for entry in found]
    # A name that means several addresses is as open as the most open one of them.
    ip = next((ip for ip in ips if not ipaddress.ip_address(ip).is_loopback), ips[0])
    return Address(host, ip, int(port))


def check_open(address: Address, *, token: str | None, tls: bool, clients: bool = False) -> None:
    """UsageError unless it is loopback, or there are TLS files and a token (or `clients` show certificates)."""
    if address.loopback or ((token or clients) and tls):
        return
    token = token or ("certificates" if clients else None)
    lacking = " and ".join([*([] if token else ["a token"]), *([] if tls else ["TLS files"])])
    raise UsageError(
        f"{address.host} can be reached from other machines and therefore requires {lacking}.",
        cure=f"--token-file FILE --cert FILE --key FILE, or --listen 127.0.0.1:{address.port}",
    )


def listen(address: Address) -> socket.socket:
    """A socket that listens there. UsageError where the port is taken or not allowed."""
    family = socket.AF_INET6 if ":" in address.ip else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Connections inherit it; without it, every answer on a kept connection waits 40 ms for an acknowledgement.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.ip, address.port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"Port {address.port} of {address.host} is in use.", cure=f"--listen {_bracketed(address.host)}:0"
            ) from None
        raise UsageError(f"Cannot listen on {address.host}:{address.port}: {error.strerror}.") from None
    return sock


def url_of(address: Address, port: int, *, tls: bool) -> str:
    """What to type into a browser."""
    host = socket.gethostname() if address.everywhere else address.host
    return f"{'https' if tls else 'http'}://{_bracketed(host)}:{port}/"


def hosts_of(address: Address, port: int, *, tls: bool, names: Iterable[str] = ()) -> frozenset[str]:
    """What a Host header may say: what it listens on, the names of loopback where it is that, and `names`."""
    hosts = [address.host, address.ip, *names]
    if address.loopback:
        hosts += LOOPBACK_NAMES
    elif address.everywhere:
        hosts += [*LOOPBACK_NAMES, socket.gethostname(), socket.getfqdn()]
    plain = {_bracketed(host).lower().rstrip(".") for host in hosts}
    return frozenset({f"{host}:{port}" for host in plain} | (plain if port == (443 if tls else 80) else set()))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


@dataclass(frozen=True, slots=True)
class Door:
    """An address to listen on, with the token and the TLS that it takes to come in."""

    address: Address
    token: str | None
    tls: bool

    @classmethod
    def checked(
        cls,
        listen_on: str,
        *,
        token: str | None = None,
        token_file: Path | None,
        tls: tuple[Path | None, Path | None],
        client_ca: Path | None = None,
    ) -> Door:
        """What the options of a server mean; `tls` is a certificate and its key. UsageError where it cannot serve."""
        door = cls(parse_listen(listen_on), read_token(token, token_file), check_tls(*tls))
        if client_ca is not None and not door.tls:
            raise UsageError("Client certificates require TLS.", cure="--cert FILE --key FILE --client-ca FILE")
        check_open(door.address, token=door.token, tls=door.tls, clients=client_ca is not None)
        return door

    def open(self, names: Iterable[str] = (), *, pages: bool = True) -> tuple[socket.socket, Access, str]:
        """A socket that listens, whom it lets in, and the URL; `names` are further host names that it answers to."""
        sock = listen(self.address)
        port = int(sock.getsockname()[1])
        hosts = hosts_of(self.address, port, tls=self.tls, names=names)
        access = Access(hosts, port, self.token, self.tls, own_ip=self.address.everywhere, pages=pages)
        return sock, access, url_of(self.address, port, tls=self.tls)
