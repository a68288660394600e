// Cameras: zoom and position. Panes whose pictures cover the same area share one.

const LARGEST_SCALE = 64;
const MARGIN = 24;  // of a fitted picture, both sides together

// `scale`: device pixels per pixel of the first picture; `x`, `y`: the point of the picture at the centre of the pane, as a
// share of its width and height.
const newCamera = () => ({ scale: 1, x: 0.5, y: 0.5, fitted: true });
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// The pane that keys and buttons zoom and move: the one that had the focus last.
const activePane = () => panes.find((pane) => pane.picture && pane.active) ?? panes.find(({ picture }) => picture);
const cameras = () => new Set(panes.filter(({ picture }) => picture).map(({ camera }) => camera));

function place() {
  for (const pane of panes) pane.place();
  find("#zoom output").textContent = `${Number(((activePane()?.camera.scale ?? 1) * 100).toPrecision(3))} %`;
}

function setScale(camera, scale) {
  camera.scale = clamp(scale, Math.min(1, fittingScale(camera)) / 4, LARGEST_SCALE);
  camera.fitted = false;
}

function fittingScale(camera) {
  const scales = panes.filter((pane) => pane.picture && pane.camera === camera).map((pane) => {
    const { width, height } = pane.picture;
    const across = (pane.stage.clientWidth - MARGIN) / width;
    const fitting = devicePixelRatio * (pane.picture.cells ? across : Math.min(across, (pane.stage.clientHeight - MARGIN) / (height * pane.stretch())));
    return fitting * camera.scale / pane.scale();
  });
  const scale = Math.max(Math.min(...scales, LARGEST_SCALE), 0.001);
  return scale > 1 ? Math.floor(scale) : scale;
}

function fit(fitted = cameras()) {
  for (const camera of fitted) {
    Object.assign(camera, { scale: fittingScale(camera), x: 0.5, y: 0.5, fitted: true });
    const page = panes.find((pane) => pane.picture?.cells && pane.camera === camera);
    if (page) camera.y = rowInSight(page, MARGIN / 2);
  }
  place();
}

function refit() {
  fit([...cameras()].filter(({ fitted }) => fitted));
}

// A grid beside a heat map is not moved with it: the same position means something else there.
function linkCameras() {
  const [first, second] = panes;
  if (second) second.camera = comparing() || swiping() || coverTheSame(first.picture, second.picture) ? first.camera : second.ownCamera;
}

function coverTheSame(one, other) {
  if (!one || !other) return true;
  const elongation = (one.width / one.height) / (other.width / other.height);
  const tiled = one.tiles?.columns === other.tiles?.columns && one.tiles?.count === other.tiles?.count;
  return tiled && Math.abs(elongation - 1) < 0.02;
}

// Buttons and keys step through whole numbers, at which all pixels become squares of equal size.
function zoomBy(direction) {
  const camera = activePane()?.camera;
  if (!camera || !direction) return;
  if (direction === "fit") return fit();
  const steps = [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
  const next = direction === "in" ? steps.find((step) => step > camera.scale * 1.001) : steps.findLast((step) => step < camera.scale * 0.999);
  setScale(camera, next ?? camera.scale);
  place();
}
