// The data of the report as Python writes them, and the types that the scripts derive from them.

import type { List } from "./list.js";
import type { Pane } from "./pane.js";

declare global {
  interface Window {
    fmapviz: Readonly<Record<string, (data: unknown) => void>>;
  }
}

/** Left, top, right and bottom, in pixels of a picture. */
export type Edges = number[];
export interface Box { x: number; y: number; width: number; height: number }
export interface Size { width: number; height: number }

/** The data that `render_page` embeds in the page. */
export interface Run {
  title: string;
  facts: [string, string][];
  units: Item[];
  views?: string[];
  failures: { path: string; message: string; code: string }[];
  model: string | null;
  models?: Step[];
  top?: string | null;
  statistics: string | null;
  curves?: string;
  objects?: Record<string, string>;
  runs?: { name: string; label: string; model: string | null; models?: Step[] }[];
}

/** An image of a run, or a series of its steps; on the page of two runs, `of` holds the entries of both. */
export interface Item {
  unit: string;
  href: string;
  index: number;
  words: string;
  predictions?: string[];
  thumbnail?: boolean;
  films?: string;
  word?: string;
  steps?: Step[];
  of?: (Item | null)[];
}

export interface Step { step: number; href: string; input?: boolean }

/** The data of an image, a model or the top images. */
export interface Unit {
  unit: string;
  href?: string;
  predictions?: string[];
  notices?: string[];
  pictures?: Picture[];
}

export interface Layer { index: number; name: string; type: string; shape: number[]; sees?: Ends[] }

/** The pixels that each position along an axis depends on, see `intervalAt`. */
export type Ends = number[] | number[][];

export interface Tiles {
  count: number; columns: number; left: number; top: number; across: number; down: number; width: number; height: number;
}

/** Rows of numbers, packed. */
export interface Packed { data: string }
export interface Numbers { minimum: number; maximum: number; mean: number; deviation: number; zeros: number; nonfinite: number }
export type Measure = keyof Numbers;

export interface Picture extends Size {
  href: string;
  view: string;
  name: string;
  title: string;
  layer: Layer | null;
  facts: [string, string][];
  tiles: Tiles | null;
  channels: number[] | null;
  statistics: (Packed & { values: number }) | null;
  levels?: Packed & { palette?: string; colours?: string };
  notices?: string[];
  strips?: { channels: number[]; images: Entry[][]; remarks?: string[] };
  histogram?: { counts: number[]; low: number | null; high: number | null; nonfinite: number };
  // Added by the page.
  src: string;
  pixels: string;
  words: string;
  shared?: string;
  order?: number[];
  only?: number;
  cells?: Tiles | null;
  behaviour?: Behaviour;
}

/** Functions of a picture without channels, which replace those of grids. */
export interface Behaviour {
  note(picture: Picture): string;
  holds(picture: Picture, channel: number | null): boolean;
  outline(picture: Picture, channel: number | null): Box | null;
  middle(pane: Pane, margin: number): number;
  point(pane: Pane, event: Position): void;
  click(pane: Pane, event: Position): (() => void) | null;
}

/** An image in the strip of a channel. */
export interface Entry { href: string; name: string; value: number; box: Edges | null; note?: string }
export interface Ranked extends Entry { rank: number }

/** Statistics over the run, of one layer and of all. */
export interface Measured extends Packed { name: string; of: string; type: string; channels: number; dead: number[] }
export interface Overall { images: number; layers: Measured[] }
export type Curves = Record<string, { steps: number[]; layers: (Packed & { name: string; of: string })[] }>;

/** The position of the pointer. */
export interface Position { clientX: number; clientY: number }

export interface Camera { scale: number; x: number; y: number; fitted: boolean }

/** The loaded units of an image on one side, and the content of its pane. */
export interface Side { unit: Unit; model?: Unit | null; films?: Unit | null; error?: string | null }
export type Image = HTMLImageElement | HTMLCanvasElement | SVGElement;
export interface Found { unit?: Unit; picture?: Picture; image?: Image; error?: string | null; own?: [string, string][] }

export interface State {
  side: number;
  units: [number, number | null];
  steps: (number | null)[];
  view: string | null;
  name: string | null;
  beside: string | null;
  channel: number | null;
  order: string | null;
  swipe: number | null;
  playing: boolean;
}

export type Format = (value: number) => string;
export type Rows<Of extends { words: string }> = List<Of>;

/** A receptive field of a position: its row and column in a map of a size. */
export interface Field { href: string; row: number; column: number; size: number[]; box: Edges; words: string }
export interface Frame { box: Box | null; caption: (name: string) => string }

export interface LazyView { view: string; label: string; load: () => Promise<void>; unit: Unit | null; error: string | null }
export interface AddressPart { name: string; write: () => string | number | null; read: (text: string) => void }
export interface Pairing {
  unite(own: Picture[], other: Picture[], options: { both: boolean }): Picture[];
  caption(pane: Pane): void;
}

/** See `registry.js`. */
export interface Report {
  opened: (() => Promise<void>)[];
  chosen: (() => void)[];
  loaded: ((picture: Picture, unit: Unit) => void)[];
  arranged: (() => void)[];
  described: (() => void)[];
  settled: (() => void)[];
  placed: (() => void)[];
  pointed: ((pane: Pane | null, event: Position | null) => { note: HTMLElement; words: string } | null)[];
  pinned: ((picture: Picture | null) => void)[];
  figures: ((figure: HTMLElement, pane: Pane, kind: string) => void)[];
  crossed: ((box: HTMLElement | null, across: number, down: number) => void)[];
  preferred: (() => string | undefined)[];
  views: LazyView[];
  addressParts: AddressPart[];
  keys: Record<string, () => void>;
  escapes: (() => boolean)[];
  crowded: boolean;
  pairing: Pairing | null;
}
