"""Place: one device of one host, as text `trainer-0/gpu:3`."""

from dataclasses import dataclass

from hetero_pipe.errors import ConfigError

__all__ = ["Place"]


@dataclass(frozen=True, order=True)
class Place:
    """One device of one machine; whether there is one, a cluster knows.

    Attributes:
        host: Of the machine: `trainer-0`.
        device: As Paddle calls it: `cpu`, `gpu:3`.

    >>> Place.parse("trainer-0/gpu:3").device, str(Place.parse("server"))
    ('gpu:3', 'server/cpu')
    """

    host: str
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.host}/{self.device}"

    @staticmethod
    def parse(text: str) -> "Place":
        """Returns the place of HOST/DEVICE; HOST alone is its CPU.

        Raises:
            ConfigError: The text is neither.
        """
        host, slash, device = text.partition("/")
        if not host or "/" in device or bool(slash) != bool(device):
            raise ConfigError(f"a place is HOST/DEVICE or HOST, got {text!r}; as in 'server/gpu:0'")
        return Place(host, device) if slash else Place(host)
