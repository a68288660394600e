"""The configuration of a run: each option's name, type, default and help, once.

The command line derives its options from these fields (`fmapviz.cli.options`), `fmapviz.visualize` takes them as keyword
arguments, Ray workers receive them, and `run.json` stores those that change pictures.
"""

from fmapviz.core.config.arguments import explain_arguments as explain_arguments
from fmapviz.core.config.checks import check_scores as check_scores
from fmapviz.core.config.checks import check_type as check_type
from fmapviz.core.config.checks import check_weights as check_weights
from fmapviz.core.config.checks import types_of as types_of
from fmapviz.core.config.execution import Engine as Engine
from fmapviz.core.config.execution import Part as Part
from fmapviz.core.config.input_options import InputOptions as InputOptions
from fmapviz.core.config.input_options import sides_of as sides_of
from fmapviz.core.config.options import COMMON as COMMON
from fmapviz.core.config.options import PANELS as PANELS
from fmapviz.core.config.options import RUNNING as RUNNING
from fmapviz.core.config.options import Option as Option
from fmapviz.core.config.options import describe as describe
from fmapviz.core.config.options import options_of as options_of
from fmapviz.core.config.options import split as split
from fmapviz.core.config.run_config import RunConfig as RunConfig
from fmapviz.core.config.run_config import RunInfo as RunInfo
from fmapviz.core.config.run_config import StepInfo as StepInfo
from fmapviz.core.config.style import COLORMAPS as COLORMAPS
from fmapviz.core.config.style import Style as Style
from fmapviz.core.config.style import canonical_colormap as canonical_colormap
