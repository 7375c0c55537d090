"""Networks whose hosts are let in by their address."""

import ipaddress
from collections.abc import Iterable

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Peers:
    """Networks such as `10.0.0.0/8` or `::1`; ValueError for what is none."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks: list[_Network] = [ipaddress.ip_network(each) for each in networks]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in network for network in self._networks)
