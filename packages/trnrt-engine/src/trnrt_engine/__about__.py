"""Version of this package; `hatch version` reads it from here."""

__version__ = "0.1.0"
