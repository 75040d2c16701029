"""The five trnrt packages, the commands each brings, and how to install what is missing."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("trnrt-cli", "trnrt-router", "trnrt-engine", "trnrt-compile", "trnrt-kernels")

INSTALL_SERVE = "pip install 'trnrt-cli[serve]'"
INSTALL_COMPILE = "pip install 'trnrt-cli[compile]'"
INSTALL_KERNELS = "pip install 'trnrt-kernels[torch]'"

COMMANDS = {
    "demo": ("trnrt-cli", "pip install trnrt-cli"),
    "doctor": ("trnrt-cli", "pip install trnrt-cli"),
    "serve": ("trnrt-router", INSTALL_SERVE),
    "router": ("trnrt-router", INSTALL_SERVE),
    "engine": ("trnrt-router", INSTALL_SERVE),
    "cache": ("trnrt-engine", INSTALL_SERVE),
    "verify": ("trnrt-engine", INSTALL_SERVE),
    "compile": ("trnrt-compile", INSTALL_COMPILE),
    "kernels": ("trnrt-kernels", INSTALL_KERNELS),
    "plan": ("trnrt-kernels", INSTALL_KERNELS),
}
"""Command -> (the package that brings it, the command that installs it)."""


def installed_versions() -> dict[str, str]:
    """Return the version of each trnrt package that is installed, umbrella first."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
