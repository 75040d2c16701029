"""Errors a caller of trnrt-kernels can cause or must handle.

TrnrtKernelsError
├── UnsupportedConfig     a model config this build cannot run (ValueError)
├── CheckpointError       model files missing, damaged or not what the config says (ValueError)
├── OptionError           a serving option has a value it cannot have (ValueError)
├── ManifestMismatch      a compiled cache was made for something else (ValueError)
└── BackendUnavailable    the asked-for backend cannot run on this machine (RuntimeError)
"""


class TrnrtKernelsError(Exception):
    """Root of the package's errors."""


class UnsupportedConfig(TrnrtKernelsError, ValueError):
    """A model config names a family or a value that this build cannot run."""


class CheckpointError(TrnrtKernelsError, ValueError):
    """A checkpoint's files are missing, damaged or disagree with its config.

    Attributes:
        findings: one sentence per defect; the message lists the first of them.
    """

    MAX_SHOWN = 20

    def __init__(self, summary: str, findings: list[str] | None = None) -> None:
        self.findings = findings if findings is not None else [summary]
        message = summary
        if findings:
            shown = findings[: self.MAX_SHOWN]
            message = "\n  ".join([f"{summary}:", *shown])
            if len(findings) > len(shown):
                message += f"\n  and {len(findings) - len(shown)} more"
        super().__init__(message)


class OptionError(TrnrtKernelsError, ValueError):
    """A serving option was given a value it cannot have."""


class ManifestMismatch(TrnrtKernelsError, ValueError):
    """A compiled cache was made for another model, layout or build."""


class BackendUnavailable(TrnrtKernelsError, RuntimeError):
    """The asked-for backend cannot run on this machine."""
