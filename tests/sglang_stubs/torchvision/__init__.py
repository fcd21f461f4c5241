"""Stands in for torchvision, which SGLang imports for models that see pictures: every name in it is a class that does
nothing."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.0.0"


class _Names(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Anything,), {})


class _Anything(metaclass=_Names):
    def __init__(self, *arguments, **settings):
        pass

    def __call__(self, *arguments, **settings):
        raise NotImplementedError("this is a stand-in for torchvision")

    def __getattr__(self, name):
        return _Anything()


class _Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("torchvision."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Finder())


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return importlib.import_module("torchvision." + name)
