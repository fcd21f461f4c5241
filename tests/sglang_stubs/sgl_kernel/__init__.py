"""Stands in for SGLang's CUDA kernels on a CPU: importing it works, calling anything of it does not."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def not_here(*arguments, **settings):
        raise NotImplementedError(f"sgl_kernel.{name} needs CUDA")

    return not_here
