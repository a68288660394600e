"""Send the pictures of a training to MLflow: `Watch(net, "cat.png", out=Writer())` within an active run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlflow

from fmapviz.errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REQUIRES = "mlflow"


class Writer:
    """The methods of a `SummaryWriter` that `fmapviz.Watch` calls; they log pictures and numbers in a run of MLflow.

    Args:
        run_id: Of a run; None: the active one.

    Raises:
        RequestError: No run is active.
    """

    def __init__(self, run_id: str | None = None) -> None:
        active = mlflow.active_run()
        if run_id is None and active is None:
            raise RequestError("no run of MLflow is active", hint="within `with mlflow.start_run():`, or Writer(run_id)")
        self._run = run_id or (active.info.run_id if active else "")
        self._client: Any = mlflow.MlflowClient()  # its types need the whole of MLflow

    def add_image(self, tag: str, pixels: NDArray[np.uint8], step: int, *, dataformats: str) -> None:  # noqa: ARG002
        """Log a picture, uint8 `(H, W)` or `(H, W, 3)`."""
        shown = pixels if pixels.ndim == 3 else pixels[..., None].repeat(3, 2)
        self._client.log_image(self._run, shown, key=tag, step=step)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Log a number."""
        self._client.log_metric(self._run, tag, value, step=step)
