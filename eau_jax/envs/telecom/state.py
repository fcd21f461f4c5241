"""What the telecom world keeps and may be set to: features, knobs, table and state."""

from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.types import Array
from eau_jax.envs.telecom.goal import Goal
from eau_jax.envs.telecom.tools import Fixed, World

FEATURES = (
    "request",     # 1: the message asks for something on the phone
    "several",     # 1: it asks for more than one such thing, and env.one_action holds
    "puzzled",     # 1: the user wants it explained first (see env.hard_clarifies)
    "ask",         # facts that it asks the user for
    "fresh",       # facts among them that were not told before
    "question",    # 1: it asks whether the problem is solved
    "announce",    # 1: it says that the user is being transferred
    "chat",        # 1: it says nothing of these
    "tool",        # 1: it is a tool call, which the user does not see
    "malformed",   # 1: it cannot be read
    "turn",        # number of this message, from 1
    "tries",       # changes made on the phone so far that did not solve the problem
    "tries_left",  # env.max_tries less these
    "repeat_run",  # messages in a row equal to the one before them, this one included
    "invalid",     # malformed messages so far, this one included
    "patience",    # env.patience less the useless messages so far, this one included
)


@struct.dataclass
class Knobs:
    """Defaults are upstream's rewards; its limits are 100 or 200 steps (a message is two to four) and 10 tool errors."""

    max_turns: int = knob(40, 1, 200, "agent messages after which the task ends")
    max_invalid: int = knob(3, 1, 64, "unreadable agent messages after which the task ends as PARSE_ERROR")
    max_errors: int = knob(10, 1, 64, "failed tool calls after which the task ends as TOOL_ERROR")
    patience: int = knob(64, 1, 64, "useless messages the user bears; the default rules leave when none is left")
    max_tries: int = knob(64, 1, 64, "changes in vain that the user makes; the default rules leave when none is left")
    frustration_after: int = knob(1, 1, 64, "changes in vain after which the user sounds annoyed")
    self_check: int = knob(2, 0, 2, "the user tests for success 0: when asked whether it works, 1: also when his "
                                    "test is what he is asked to do, 2: after every phone action")
    one_action: int = knob(1, 0, 1, "1: the default rules refuse several phone actions at once; 0: he does the first")
    refuel_ok: int = knob(1, 0, 1, "1: the user agrees to buy 2 GB of data")
    pay_ok: int = knob(1, 0, 1, "1: the user pays a bill when asked to")
    volunteer_location: int = knob(0, 0, 1, "1: with the first fact he tells where he is")
    hard_clarifies: int = knob(0, 0, 1, "1: with the Hard persona he wants each new phone action explained once")
    partial_credit: float = knob(0.0, 0.0, 1.0, "reward for the share of faults mended, where the task is not solved",
                                 reward=True)
    step_penalty: float = knob(0.0, 0.0, 1.0, "reward lost in each message", reward=True)
    invalid_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for an unreadable message or a failed tool call", reward=True)
    show_reward_in_text: int = knob(0, 0, 1, "1: the reply states the reward")


@struct.dataclass(kw_only=True)
class SoloKnobs:
    """Those of `Knobs` that mean something without a user."""

    max_turns: int = knob(40, 1, 200, "agent messages after which the task ends")
    max_invalid: int = knob(3, 1, 64, "messages that are no tool call after which the task ends as PARSE_ERROR")
    max_errors: int = knob(10, 1, 64, "failed tool calls after which the task ends as TOOL_ERROR")
    partial_credit: float = knob(0.0, 0.0, 1.0, "reward for the share of faults mended, where the task is not solved",
                                 reward=True)
    step_penalty: float = knob(0.0, 0.0, 1.0, "reward lost in each message", reward=True)
    invalid_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for a message that is no tool call, or a failed one",
                                  reward=True)
    show_reward_in_text: int = knob(0, 0, 1, "1: the reply states the reward")


@struct.dataclass(kw_only=True)
class Table:
    """One row a task."""

    fixed: Fixed
    start: World
    goal: Goal
    faults: Array       # [tasks] i32: mask of what stands in the way at the start
    hard: Array         # [tasks] bool: the Hard persona


@struct.dataclass(kw_only=True)
class State:
    task: Array         # [] i32: row of the table
    turn: Array         # [] i32: messages so far
    done: Array         # [] bool
    stop: Array         # [] i32, as in TimeStep
    world: World
    phase: Array        # [] i32, a Phase: how the user feels about it
    told: Array         # [] i32: mask of the facts told so far
    tries: Array        # [] i32: changes on the phone in vain
    tools: Array        # [] i32: bit k: agent tool k was called with success
    phone: Array        # [] i32: bit k: phone action FIRST_PHONE + k was carried out
    last_code: Array    # [] i32: act of the message before, -1 at the start
    last_values: Array  # [4] f32
    repeat_run: Array   # [] i32
    invalid: Array      # [] i32: unreadable messages so far
    errors: Array       # [] i32: failed tool calls so far
    useless: Array      # [] i32: messages so far that could not help
    solved: Array       # [] bool: the task ended as it should
