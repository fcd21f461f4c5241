"""What a user's turn is, in one vocabulary for all domains: the labels of data that user models learn from."""

from eau_jax.core.part import TimeStep
from eau_jax.envs.tau2 import user as customer
from eau_jax.envs.telecom import text as caller

ACTS = ("answer", "unknown", "withhold", "volunteer", "confirm", "correct", "refuse", "complain", "clarify", "next", "go_on",
        "report", "stop", "leave")
KEEPS = ("unknown", "withhold")                          # says nothing, since there is nothing to say or it must not be said
RECOVERS = ("correct", "refuse", "complain", "clarify")  # answers a slip of the agent
ENDS = ("stop", "leave")
TOOL = "tool"                                            # of a turn in which a tool answers
_CUSTOMER = {
    customer.Say.GIVE: "answer", customer.Say.YES: "confirm", customer.Say.CORRECT: "correct", customer.Say.NO: "refuse",
    customer.Say.INSIST: "complain", customer.Say.CHANGE: "next", customer.Say.STOP: "stop",
    customer.Say.TRANSFERRED: "stop", customer.Say.WITHHELD: "withhold", customer.Say.UNCLEAR: "clarify",
    customer.Say.VOLUNTEER: "volunteer", customer.Say.GO_ON: "go_on", customer.Say.LEFT: "leave"}
_CALLER = {
    caller.Say.REPORT: "report", caller.Say.ANNOYED: "complain", caller.Say.UNCHANGED: "report", caller.Say.TOLD: "answer",
    caller.Say.VOLUNTEERED: "volunteer", caller.Say.REFUSED: "withhold", caller.Say.UNCLEAR: "clarify",
    caller.Say.ONE_AT_A_TIME: "clarify", caller.Say.PUZZLED: "clarify", caller.Say.WAITING: "go_on",
    caller.Say.NOT_SOLVED: "complain", caller.Say.SOLVED: "stop", caller.Say.TRANSFERRED: "stop", caller.Say.LEFT: "leave",
    caller.Say.ENDED: "leave"}


def customer_act(step: TimeStep, text: str) -> str:
    """The act of a reply in tau2-bench's database worlds; one of ACTS, or TOOL."""
    act = _CUSTOMER.get(customer.Say(int(step.code)), TOOL)
    return "unknown" if act == "answer" and "I do not know the " in text else act


def caller_act(step: TimeStep, text: str) -> str:
    """The same in telecom."""
    return _CALLER.get(caller.Say(int(step.code) % 100), TOOL)
