"""How much of what an agent says depends on the task, and how many different things it does."""

import collections
import math
from typing import Any, Mapping, Sequence

Record = Mapping[str, Any]      # one line of episodes/<step>.jsonl


def task_information(records: Sequence[Record]) -> float:
    """Which share of the task its messages tell, in [0, 1]: the mutual information of task and message at the same place of
    a conversation, as a share of the tasks' own entropy.

        I(T; M) / H(T) = 1 − H(T | M) / H(T)

    1: no two tasks get the same message; 0: all get the same, and the agent has become a template. nan where no place has
    two tasks.
    """
    places: dict[int, collections.Counter] = collections.defaultdict(collections.Counter)
    for record in records:
        for place, turn in enumerate(record["turns"]):
            places[place][(record["task"], " ".join(turn["agent"].split()))] += 1
    left = whole = 0.0
    for pairs in places.values():
        tasks, messages = collections.Counter(), collections.Counter()
        for (task, message), count in pairs.items():
            tasks[task] += count
            messages[message] += count
        whole += pairs.total() * entropy(tasks)
        left += pairs.total() * (entropy(pairs) - entropy(messages))
    return 1 - left / whole if whole > 0 else math.nan


def act_entropy(records: Sequence[Record]) -> float:
    """Of the agent's acts, in nats: tools and kinds of messages that are not used any more make it small; nan without acts.
    """
    acts = collections.Counter((turn["act"]["kind"], turn["act"]["code"]) for record in records for turn in record["turns"])
    return entropy(acts) if acts else math.nan


def entropy(counts: collections.Counter) -> float:
    """Of the shares of counts, in nats."""
    total = counts.total()
    return sum(count / total * math.log(total / count) for count in counts.values())
