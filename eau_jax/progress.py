"""What a person sees while a run goes on: a bar in a terminal, one line an update elsewhere."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from eau_jax.core.printable import printable


def console() -> Console:
    """The terminal; 120 columns wide where there is none, so that tables in files and pipes are whole."""
    shown = Console()
    return shown if shown.is_terminal else Console(width=120)


class Watch:
    """Shows one run. Use as a context manager."""

    def __init__(self):
        self.console = console()
        self._bars = Progress(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                              TimeElapsedColumn(), TimeRemainingColumn(), console=self.console,
                              disable=not self.console.is_terminal, transient=True)
        self._phases: dict[str, Any] = {}

    def __enter__(self) -> "Watch":
        self._bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def at(self, phase: str, done: int, total: int) -> None:
        """Moves the bar of a phase, which appears with its first call and goes when it is done."""
        if phase not in self._phases:
            self._phases[phase] = self._bars.add_task(phase, total=total)
        self._bars.update(self._phases[phase], completed=done, total=total)
        if done >= total:
            self._bars.remove_task(self._phases.pop(phase))
