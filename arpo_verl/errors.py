"""Every error of arpo_verl, named by the boundary that failed.

ArpoError
├── ConfigError (ValueError)            a recipe's or a call's value is wrong
│   └── SeveralErrors                   several things are wrong, reported at once
├── TaskError (ValueError)              a task file is missing, malformed or cannot run here
├── ActionError (ValueError)            an action is none that a desktop can do
│   └── ActionParseError                a model reply is not in the grammar: becomes a stop reason
├── ImageError (ValueError)             a picture is broken, or larger than any screen's
├── ReplayError (ValueError)            a stored trajectory does not fit
├── GenerationError (RuntimeError)      the rollout engine gave no usable reply: the session is dropped, never scored
│   ├── EndpointError                   so did a server that is asked over the network
│   └── HarnessError                    the program that plays the episode crashed, hung or asked for no reply
├── RequestError (ValueError)           a harness asked for a reply in a way that we cannot answer
├── RolloutWorkerError (RuntimeError)   rollout workers die again and again: the run ends
├── EngineLostError (RuntimeError)      a rollout engine died or hangs: the run ends behind its step
├── QueueLostError (RuntimeError)       a process of veRL's queue died: the run ends
├── SessionsLostError (RuntimeError)    prompt after prompt loses sessions: the run ends
├── PatchLostError (RuntimeError)       a change that we make to veRL or vLLM is not in place: the run ends
├── MissingDependencyError (ImportError) a package or a program is not installed
├── FetchError (RuntimeError)           a download failed or is not what it should be
├── DesktopEndedError (RuntimeError)    the policy ended its desktop: the episode is over, its score is 0
├── TaskQuarantinedError (RuntimeError) a task breaks desktops: its sessions are dropped for a while, never scored
└── DesktopError (RuntimeError)         an infrastructure fault: retried on a fresh desktop, never scored
    ├── DesktopBootError                it did not start
    ├── DesktopSetupError               the task's set-up did not complete
    ├── DesktopLostError                it died or hung in use
    │   ├── HostLostError               its worker process, or the node under it, died
    │   └── DesktopUnclearError         its machine lives, the guest on it fails, and nothing says whose doing that is
    └── EvaluatorError                  the evaluator broke: no verdict
"""


class ArpoError(Exception):
    """Root of all errors of this package."""


class ConfigError(ArpoError, ValueError):
    """A value of a recipe or of a call is wrong."""


class SeveralErrors(ConfigError):
    """Several things are wrong: the message has a paragraph for each.

    Args:
        errors: each of them.
    """

    def __init__(self, *errors: ArpoError):
        super().__init__(*errors)  # Ray's workers make it again from these
        self.errors = errors

    def __str__(self) -> str:
        told = (str(error).replace("\n", "\n  ") for error in self.errors)
        return "\n- ".join([f"{len(self.errors)} problems:", *told])


class TaskError(ArpoError, ValueError):
    """A task file is missing, malformed or cannot run here."""


class ActionError(ArpoError, ValueError):
    """An action is none that a desktop can do: a point off the screen, an unknown key. It never reached one."""


class ActionParseError(ActionError):
    """A model reply is not in the action grammar."""


class ImageError(ArpoError, ValueError):
    """Bytes are no picture that a desktop may send: broken, of another format, or larger than any screen's."""


class ReplayError(ArpoError, ValueError):
    """A stored trajectory does not fit the run that asks for it."""


class GenerationError(ArpoError, RuntimeError):
    """The rollout engine gave no usable reply: veRL drops the session, and nothing is scored."""


class EndpointError(GenerationError):
    """A server that is asked for replies is not there, or gave none that can be used: an infrastructure fault."""


class HarnessError(GenerationError):
    """The program that plays an episode failed, and nothing says that the policy made it: the session is dropped."""


class RequestError(ArpoError, ValueError):
    """A harness asked for a reply in a way that we cannot answer.

    Args:
        message: what is wrong and what to do.
        status: HTTP's, which a client over the network gets.
        code: OpenAI's word for it, where there is one.
    """

    def __init__(self, message: str, status: int = 400, code: str = "invalid_request_error"):
        super().__init__(message, status, code)
        self.status, self.code = status, code

    def __str__(self) -> str:
        return str(self.args[0])


class RolloutWorkerError(ArpoError, RuntimeError):
    """The processes that play episodes die again and again, and finish no prompt in between: the run ends."""


class EngineLostError(ArpoError, RuntimeError):
    """A rollout engine died or answers no more: the step is trained to its end, then the run ends."""


class QueueLostError(ArpoError, RuntimeError):
    """A process of the queue between rollouts and trainer died: the run ends."""


class SessionsLostError(ArpoError, RuntimeError):
    """Prompt after prompt loses sessions, so that no batch can be put together any more: the run ends."""


class PatchLostError(ArpoError, RuntimeError):
    """A process that needs a change of veRL's or vLLM's code runs their own function: the run ends."""


class MissingDependencyError(ArpoError, ImportError):
    """A package or a program that this needs is not installed; the message says how to install it."""


class FetchError(ArpoError, RuntimeError):
    """A download failed, or what came is not what it should be; a second run goes on with what came well."""


class TaskQuarantinedError(ArpoError, RuntimeError):
    """A task has broken desktops repeatedly: its sessions are dropped for a while, counted, never scored."""


class DesktopEndedError(ArpoError, RuntimeError):
    """The policy ended its own desktop, as the desktop can prove: no fault; the episode is over, its score is 0."""


class DesktopError(ArpoError, RuntimeError):
    """An infrastructure fault of a desktop: retried on a fresh one, then dropped and counted, never scored."""


class DesktopBootError(DesktopError):
    """The desktop did not start."""


class DesktopSetupError(DesktopError):
    """The task's set-up steps did not complete."""


class DesktopLostError(DesktopError):
    """The desktop died or stopped answering while in use."""


class HostLostError(DesktopLostError):
    """The process that hosts the desktop died, or the node under it: no doing of the task's."""


class DesktopUnclearError(DesktopLostError):
    """The machine runs, but its guest does not answer as it should, and nothing proves that the policy did that."""


class EvaluatorError(DesktopError):
    """The evaluator raised instead of giving a verdict."""
