// The camera: zoom and position, shared by all panes.

const LARGEST_SCALE = 64;

// `scale`: device pixels per pixel of the first picture; `x`, `y`: the point of the picture at the centre of the pane, as a
// share of its width and height.
const camera = { scale: 1, x: 0.5, y: 0.5, fitted: true };
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function place() {
  for (const pane of panes) pane.place();
  find("#zoom output").textContent = `${Number((camera.scale * 100).toPrecision(3))} %`;
}

function setScale(scale) {
  camera.scale = clamp(scale, Math.min(1, fittingScale()) / 4, LARGEST_SCALE);
  camera.fitted = false;
}

function fittingScale() {
  const margin = 24;
  const scales = panes.filter((pane) => pane.picture).map((pane) => {
    const { width, height } = pane.picture;
    const fitting = devicePixelRatio * Math.min((pane.stage.clientWidth - margin) / width, (pane.stage.clientHeight - margin) / height);
    return fitting * camera.scale / pane.scale();
  });
  const scale = Math.max(Math.min(...scales, LARGEST_SCALE), 0.001);
  return scale > 1 ? Math.floor(scale) : scale;
}

function fit() {
  if (!panes.some((pane) => pane.picture)) return;
  Object.assign(camera, { scale: fittingScale(), x: 0.5, y: 0.5, fitted: true });
  place();
}

// Buttons and keys step through whole numbers, at which all pixels become squares of equal size.
function zoomBy(direction) {
  const pane = panes.find(({ picture }) => picture);
  if (!pane || !direction) return;
  if (direction === "fit") return fit();
  const steps = [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
  const next = direction === "in" ? steps.find((step) => step > camera.scale * 1.001) : steps.findLast((step) => step < camera.scale * 0.999);
  setScale(next ?? camera.scale);
  place();
}
