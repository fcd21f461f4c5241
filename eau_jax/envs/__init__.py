"""Simulated worlds and benchmarks: pure array simulators, and the host functions that turn text into acts and back."""
