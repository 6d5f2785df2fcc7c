"""Define every error of arpo_verl, named by the part that failed.

ArpoError
├── ConfigError (ValueError)            a recipe's or a call's value is wrong
│   └── SeveralErrors                   several things are wrong and reported at once
├── TaskError (ValueError)              a task file is missing, malformed or cannot run here
├── ActionError (ValueError)            a desktop cannot do this action
│   └── ActionParseError                a model reply is not in the grammar: becomes a stop reason
├── ImageError (ValueError)             a picture is broken, or larger than any screen
├── ReplayError (ValueError)            a stored trajectory does not fit
├── GenerationError (RuntimeError)      the rollout engine gave no usable reply: the session is dropped, never scored
│   ├── EndpointError                   a server on the network gave no usable reply: likewise
│   └── HarnessError                    the program that plays the episode crashed, hung or never asked for a reply
├── RequestError (ValueError)           a harness asked for a reply in a way that we cannot answer
├── PatchLostError (RuntimeError)       a patch of veRL or vLLM that we need is missing: the run ends
├── MissingDependencyError (ImportError) a package or a program is not installed
├── FetchError (RuntimeError)           a download failed or is not what it should be
├── DesktopEndedError (RuntimeError)    the policy ended its desktop: the episode is over, its score is 0
└── DesktopError (RuntimeError)         an infrastructure fault: retried on a fresh desktop, never scored
    ├── DesktopBootError                it did not start
    ├── DesktopSetupError               the task's set-up did not complete
    ├── DesktopLostError                it died or hung in use
    │   ├── HostLostError               its worker process, or the node under it, died
    │   └── DesktopUnclearError         its machine runs, the guest on it fails, and the cause is unknown
    └── EvaluatorError                  the evaluator broke: there is no score
"""


class ArpoError(Exception):
    """Root of all errors of this package."""


class ConfigError(ArpoError, ValueError):
    """A value of a recipe or of a call is wrong."""


class SeveralErrors(ConfigError):
    """Several things are wrong. The message has a paragraph for each.

    Args:
        errors: the single errors.
    """

    def __init__(self, *errors: ArpoError):
        super().__init__(*errors)  # Ray's workers rebuild it from these
        self.errors = errors

    def __str__(self) -> str:
        told = (str(error).replace("\n", "\n  ") for error in self.errors)
        return "\n- ".join([f"{len(self.errors)} problems:", *told])


class TaskError(ArpoError, ValueError):
    """A task file is missing, malformed or cannot run here."""


class ActionError(ArpoError, ValueError):
    """A desktop cannot do this action: a point is off the screen, a key is unknown. It was not sent to a desktop."""


class ActionParseError(ActionError):
    """A model reply is not in the action grammar."""


class ImageError(ArpoError, ValueError):
    """Bytes are not a picture that a desktop may send: broken, of another format, or larger than any screen."""


class ReplayError(ArpoError, ValueError):
    """A stored trajectory does not fit the run that asks for it."""


class GenerationError(ArpoError, RuntimeError):
    """The rollout engine gave no usable reply. veRL drops the session, and nothing is scored."""


class EndpointError(GenerationError):
    """A server that we ask for replies is not there, or gave no usable reply. This is an infrastructure fault."""


class HarnessError(GenerationError):
    """The program that plays an episode failed, and not provably through the policy. The session is dropped."""


class RequestError(ArpoError, ValueError):
    """A harness asked for a reply in a way that we cannot answer.

    Args:
        message: what is wrong and what to do.
        status: the HTTP status, for a client over the network.
        code: OpenAI's error code, if there is one.
    """

    def __init__(self, message: str, status: int = 400, code: str = "invalid_request_error"):
        super().__init__(message, status, code)
        self.status, self.code = status, code

    def __str__(self) -> str:
        return str(self.args[0])


class PatchLostError(ArpoError, RuntimeError):
    """A process runs a function of veRL or vLLM without the patch that we need. The run ends."""


class MissingDependencyError(ArpoError, ImportError):
    """A package or a program is not installed. The message says how to install it."""


class FetchError(ArpoError, RuntimeError):
    """A download failed, or its content is wrong. A second run continues with what is already there."""


class DesktopEndedError(ArpoError, RuntimeError):
    """The policy provably ended its own desktop. This is not a fault: the episode is over, and its score is 0."""


class DesktopError(ArpoError, RuntimeError):
    """An infrastructure fault of a desktop. We retry on a fresh one, or drop and count the session, but never score."""


class DesktopBootError(DesktopError):
    """The desktop did not start."""


class DesktopSetupError(DesktopError):
    """The task's set-up steps did not complete."""


class DesktopLostError(DesktopError):
    """The desktop died or stopped answering while in use."""


class HostLostError(DesktopLostError):
    """The process that hosts the desktop died, or the node under it. It is not the task's doing."""


class DesktopUnclearError(DesktopLostError):
    """The machine runs, but its guest does not answer correctly, and nothing proves that the policy caused it."""


class EvaluatorError(DesktopError):
    """The evaluator raised an error instead of giving a score."""
