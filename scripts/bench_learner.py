"""Speed of annotate + update: against PyTorch on this machine's CPU, or against what a device can do.

    python scripts/bench_learner.py [--repeats 5] [--quick] [--one-core]     # see learner_against_torch.py
    python scripts/bench_learner.py --device gpu [--config CONFIG]           # see limits.py; default: Qwen3-4B with LoRA
    python scripts/bench_learner.py --device cpu                             # the same measurement of the quickstart's model
"""

import argparse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="timed steps; on the CPU, of each side")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="measure ours alone, against the limits of this device")
    parser.add_argument("--config", help="with --device: whose model, batch and learner are taken, without its weights")
    parser.add_argument("--tasks", type=int, help="with --device: groups of episodes in a batch; default: learn.minibatches")
    parser.add_argument("--quick", action="store_true", help="without --device: a quarter of the work, no verdict")
    parser.add_argument("--one-core", action="store_true", help="without --device: pin both sides to one core and count CPU "
                        "seconds: on a machine that others use, where wall clock says little")
    arguments = parser.parse_args()
    for name in ("repeats", "tasks"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            parser.error(f"--{name} is {value}; it must be at least 1")
    odd = ("quick", "one_core") if arguments.device else ("config", "tasks")
    for name in odd:
        if getattr(arguments, name):
            parser.error(f"--{name.replace('_', '-')} would do nothing with{'' if arguments.device else 'out'} --device")
    if arguments.device:
        import limits

        limits.main("learner", arguments)
    else:
        import learner_against_torch

        learner_against_torch.main(arguments)


if __name__ == "__main__":
    main()
