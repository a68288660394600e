// @ts-check
// Lists of images and of layers, whose elements exist for visible rows only.

import { around, cutName, find, make, narrow } from "./text.js";

/** @template {{ words: string }} Of */
export class List {
  /**
   * @param {HTMLElement} root
   * @param {{
   *   row: number,
   *   noun: string,
   *   label: (item: Of) => string,
   *   draw: (item: Of, row: HTMLElement) => void,
   *   mark?: (row: HTMLElement, item: Of) => void,
   *   choose: (item: Of, other: boolean) => void,
   * }} options
   */
  constructor(root, { row, noun, label, draw, mark, choose }) {
    this.root = root;
    this.rowHeight = row;
    this.noun = noun;
    this.label = label;
    this.draw = draw;
    this.mark = mark;
    this.choose = choose;
    /** @type {Of[]} */
    this.items = [];
    this.shown = this.items;
    /** @type {Of | null} */
    this.selected = null;
    /** @type {Map<Of, HTMLElement>} */
    this.drawn = new Map();
    this.box = find(".rows", root);
    this.reel = find(".reel", root);
    /** @type {HTMLInputElement} */
    this.filter = find("input[type=search]", root);
    this.toggle = find("h2 button", root);
    root.style.setProperty("--row", `${row}px`);
    this.listen();
  }

  listen() {
    this.box.addEventListener("scroll", () => this.render());
    new ResizeObserver(() => this.render()).observe(this.box);
    this.reel.addEventListener("click", (event) => {
      const row = around(event, ".row");
      if (row) this.choose(this.shown[Number(row.dataset.index)], event.shiftKey);
      if (row && narrow.matches) this.expand(false);
    });
    this.filter.addEventListener("input", () => this.sift());
    this.toggle.addEventListener("click", () => this.expand(this.toggle.getAttribute("aria-expanded") !== "true"));
  }

  /** @param {boolean} open */
  expand(open) {
    this.toggle.setAttribute("aria-expanded", String(open));
    find(".body", this.root).hidden = !open;
    if (open) this.reveal();
  }

  /** @param {Of[]} items */
  setItems(items) {
    this.items = items;
    this.drawn.clear();
    this.reel.replaceChildren();
    this.sift();
  }

  sift() {
    const wanted = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = this.items.filter((item) => wanted.every((word) => item.words.includes(word)));
    this.box.hidden = !this.shown.length;
    const none = find(".none", this.root);
    none.hidden = this.shown.length > 0;
    none.textContent = this.items.length ? `No ${this.noun} matches.` : `No ${this.noun}s.`;
    const { length } = this.shown;
    find(".count", this.root).textContent = length === this.items.length ? String(length) : `${length} of ${this.items.length}`;
    this.reel.style.height = `${length * this.rowHeight}px`;
    this.reveal();
  }

  /** @type {(item: Of | null, options?: { still?: boolean }) => void} */
  select(item, { still = false } = {}) {
    this.selected = item;
    find(".current", this.root).replaceChildren(...(item ? cutName(this.label(item)) : []));
    if (still) this.render();
    else this.reveal();
  }

  // Scroll just enough to show the selected row.
  reveal() {
    const top = this.shown.findIndex((item) => item === this.selected) * this.rowHeight;
    if (top >= 0) {
      const lowest = top + this.rowHeight - this.box.clientHeight;
      if (this.box.clientHeight) this.box.scrollTop = Math.min(top, Math.max(lowest, this.box.scrollTop));
    }
    this.render();
  }

  render() {
    const first = Math.floor(this.box.scrollTop / this.rowHeight);
    const last = Math.min(this.shown.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / this.rowHeight));
    const rows = new Map();
    for (let index = first; index < last; index += 1) {
      const item = this.shown[index];
      rows.set(item, this.place(this.drawn.get(item) ?? this.create(item), item, index));
    }
    for (const [item, row] of this.drawn) if (!rows.has(item)) row.remove();
    this.drawn = rows;
    // Rows that stay are not moved: some browsers reload the thumbnail of a moved element.
    let next = this.reel.firstChild;
    for (const row of rows.values()) {
      if (row === next) next = next.nextSibling;
      else this.reel.insertBefore(row, next);
    }
    const active = rows.get(this.selected);
    if (active) this.box.setAttribute("aria-activedescendant", active.id);
    else this.box.removeAttribute("aria-activedescendant");
  }

  /** @param {Of} item */
  create(item) {
    const row = make("div", "row");
    row.setAttribute("role", "option");
    this.draw(item, row);
    return row;
  }

  /** @type {(row: HTMLElement, item: Of, index: number) => HTMLElement} */
  place(row, item, index) {
    row.id = `${this.root.id}-${index}`;
    row.dataset.index = String(index);
    row.style.transform = `translateY(${index * this.rowHeight}px)`;
    row.setAttribute("aria-selected", String(item === this.selected));
    row.setAttribute("aria-setsize", String(this.shown.length));
    row.setAttribute("aria-posinset", String(index + 1));
    this.mark?.(row, item);
    return row;
  }

  /** @param {number} by */
  step(by) {
    if (!this.shown.length) return;
    const at = this.shown.findIndex((item) => item === this.selected);
    const to = at < 0 ? (by > 0 ? 0 : this.shown.length - 1) : at + by;
    this.choose(this.shown[Math.min(Math.max(to, 0), this.shown.length - 1)], false);
  }

  page() {
    return Math.max(1, Math.floor(this.box.clientHeight / this.rowHeight) - 1);
  }
}
