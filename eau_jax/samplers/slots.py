"""The host's side of the key-value cache: which session lives in which slot, what the slot holds and what it draws."""

import numpy as np

from eau_jax.samplers import decode
from eau_jax.samplers.types import TokenRequest

MAX_STOP_IDS = 8
IDLE_CALLS = 2  # after so many decoding calls without a request a session's slot may be taken


class Slots:
    """N slots of S tokens. tokens[n, :held[n]] are in the cache; tokens[n, :held[n] + 1] is the history of a slot that
    draws, so its last token is the one that the next draw feeds."""

    def __init__(self, slots: int, length: int):
        self.session: list[str | None] = [None] * slots
        self.tokens = np.zeros((slots, length), np.int32)
        self.logprobs = np.zeros((slots, length), np.float32)
        self.held = np.zeros(slots, np.int32)
        self.left = np.zeros(slots, np.int32)     # tokens that may still be drawn
        self.begin = np.zeros(slots, np.int32)    # where the action begins
        self.seeds = np.zeros((slots, 2), np.uint32)
        self.stop_ids = np.full((slots, MAX_STOP_IDS), decode.NO_STOP, np.int32)
        self._calls = 0                           # decoding calls so far: the clock by which sessions are idle
        self._used = np.zeros(slots, np.int64)    # when the session last drew a token

    def place(self, session: str) -> int | None:
        """The session's slot; or the lowest free one; or that of the idle session used longest ago, which loses it.
        None when the session has to wait.

        A session is idle when it has not drawn for IDLE_CALLS calls; when nothing is drawing, every session is.
        """
        if session in self.session:
            return self.session.index(session)
        if None in self.session:
            slot = self.session.index(None)
        else:
            idle = (self.left == 0) & ((self._calls - self._used >= IDLE_CALLS) | ~self.left.any())
            if not idle.any():
                return None
            slot = min(np.flatnonzero(idle).tolist(), key=lambda slot: self._used[slot])
        self.clear(slot)
        self.session[slot] = session
        return slot

    def start(self, slot: int, request: TokenRequest) -> None:
        """Sets the slot to draw. What it holds is kept up to the first token that differs from the history; the last
        token is always fed again, because its output gives the first draw."""
        history, size = np.asarray(request.tokens, np.int32), len(request.tokens)
        common = min(int(self.held[slot]), size - 1)
        differs = np.flatnonzero(self.tokens[slot, :common] != history[:common])
        self.held[slot] = differs[0] if differs.size else common
        self.tokens[slot, :size] = history
        self.begin[slot] = size
        self.left[slot] = min(request.max_new_tokens, self.tokens.shape[1] - size)
        self.seeds[slot] = request.seed >> 32, request.seed & 0xFFFFFFFF
        self.stop_ids[slot] = decode.NO_STOP
        self.stop_ids[slot, :len(request.stop_ids)] = request.stop_ids

    def lacking(self) -> np.ndarray:
        """i32[N]: tokens that have to be fed before a slot can draw; 0 for a slot that does not draw."""
        return np.where(self.left > 0, np.maximum(self.begin - 1 - self.held, 0), 0)

    def rows(self, left: np.ndarray) -> decode.Rows:
        """What the device needs to draw up to left[n] tokens in slot n."""
        last = self.tokens[np.arange(len(self.held)), self.held]
        return decode.Rows(last=last, held=self.held, left=left, seeds=self.seeds, stop_ids=self.stop_ids)

    def record(self, tokens: np.ndarray, logprobs: np.ndarray, count: np.ndarray) -> list[int]:
        """Takes in one decoding call: i32[N, steps], f32[N, steps], i32[N]. Returns the slots whose action is complete."""
        self._calls += 1
        complete = []
        for slot in np.flatnonzero(count).tolist():
            drawn, first = int(count[slot]), int(self.held[slot]) + 1
            self.tokens[slot, first:first + drawn] = tokens[slot, :drawn]
            self.logprobs[slot, first:first + drawn] = logprobs[slot, :drawn]
            self.held[slot] += drawn
            self.left[slot] -= drawn
            self._used[slot] = self._calls
            if self.left[slot] == 0 or self.stopped(slot):
                complete.append(slot)
        return complete

    def stopped(self, slot: int) -> bool:
        """The action ends with a stop token."""
        return self.tokens[slot, self.held[slot]] in self.stop_ids[slot]

    def action(self, slot: int) -> tuple[np.ndarray, np.ndarray]:
        """What has been drawn so far: tokens i32[a] and their log-probabilities f32[a]."""
        drawn = slice(self.begin[slot], max(self.held[slot] + 1, self.begin[slot]))
        return self.tokens[slot, drawn].copy(), self.logprobs[slot, drawn].copy()

    def rest(self, slot: int) -> None:
        """The slot draws no more; what it holds stays true."""
        self.left[slot] = 0

    def clear(self, slot: int) -> None:
        """The slot is free and holds nothing."""
        self.session[slot] = None
        self.held[slot] = self.left[slot] = self._used[slot] = 0
