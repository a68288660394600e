from fmapviz.core.config import RunConfig
from fmapviz.core.events import RunSummary


def are_runs(config: RunConfig) -> bool:
    return False


def compare_runs(config: RunConfig) -> RunSummary:
    raise NotImplementedError
