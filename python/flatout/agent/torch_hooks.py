"""Hooks PyTorch, right after `import torch`. Each part by itself: what a version lacks is left out."""
from . import core


def install(torch):
    core.info("torch.version", getattr(torch, "__version__", None))
    core.info("torch.git_version", getattr(getattr(torch, "version", None), "git_version", None))
    core.info("torch.cuda_version", getattr(getattr(torch, "version", None), "cuda", None))
    compiler = getattr(torch, "compiler", None)
    core.compiling = (getattr(compiler, "is_dynamo_compiling", None)  # the cheaper one
                      or getattr(compiler, "is_compiling", None) or bool)
    from . import (collector, cuda, denormals, distributed, forward, keeps, loader, optimizers, profiler,
                   saving, settings, training, waits, watchers)

    missing = []
    for part in (loader, training, forward, saving, waits, collector, distributed, cuda,
                 settings, keeps, profiler, optimizers, watchers, denormals):
        try:
            part.install(torch)
        except (ImportError, AttributeError) as error:
            missing.append("%s: %s" % (part.__name__.rpartition(".")[2], error))
    if missing:
        core.info("agent.missing", "; ".join(missing))
