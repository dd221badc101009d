// The chart and the tree map. Every text is set as text, never as markup.

const add = (parent, tag, attributes = {}, ...children) => {
  const isDrawn = tag === "svg" || parent?.namespaceURI === "http://www.w3.org/2000/svg";
  const made = isDrawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  parent?.append(made);
  return made;
};
// Lays an element out now, and whenever it has another size.
const fitted = (element, layOut) => {
  let size;
  const fit = () => {
    const now = `${element.clientWidth} ${element.clientHeight}`;
    if (now !== size) layOut();
    size = now;
  };
  fit();
  new ResizeObserver(fit).observe(element);
};
const colour = (number) => `var(--c${number % 8})`;

// A slider over the points of a chart: bands on one another, and the numbers of one point below.
const drawChart = (parent, { unit, bands, points, title }) => {
  const keys = "Left and Right move";
  const chart = add(parent, "svg", { class: "chart", tabindex: 0, role: "slider", "aria-label": `${title}; ${keys}` });
  const legend = add(parent, "ul", { class: "legend" });
  const hidden = new Set();
  const labels = bands.map((band, i) => {
    const button = add(add(legend, "li"), "button", { type: "button", "aria-pressed": true, title: "hides or shows it" });
    add(button, "i", { class: "swatch" }).style.background = colour(i);
    button.append(band);
    button.addEventListener("click", () => {
      if (!hidden.delete(i)) hidden.add(i);
      button.setAttribute("aria-pressed", !hidden.has(i));
      layOut();
    });
    return add(button, "b");
  });
  const total = add(add(legend, "li", {}, "all"), "b");
  const where = add(legend, "li", { class: "soft" });
  const isTimed = points.every(({ at }) => at !== undefined);
  const shown = points.length > 1 ? points : [points[0], points[0]];
  const at = shown.map((point, i) => (isTimed && points.length > 1 ? point.at : i));
  const height = (values, i) => (hidden.has(i) ? 0 : values[i]);
  const heights = () => points.map(({ values }) => sum(values.map((_bytes, i) => height(values, i))));
  let all = heights();
  let now = all.indexOf(Math.max(...all));
  let cursor, toX;

  const say = (number) => {
    now = Math.max(0, Math.min(points.length - 1, number));
    const { values, label } = points[now];
    values.forEach((bytes, i) => (labels[i].textContent = mib(bytes)));
    total.textContent = mib(all[now]);
    const time = `${at[now].toLocaleString("en-US", { maximumFractionDigits: 2 })}`;
    where.textContent = label ?? (points.length < 2 ? "now" : unit === "second" ? `after ${time} s` : `${unit} ${time}`);
    const said = bands.map((band, i) => `${band} ${mib(values[i])}`).join(", ");
    const range = { min: 0, max: points.length - 1, now, text: `${where.textContent}: ${mib(all[now])}: ${said}` };
    for (const [name, value] of Object.entries(range)) chart.setAttribute(`aria-value${name}`, value);
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, toX(at[now]));
  };
  const layOut = () => {
    all = heights();
    const most = Math.max(...all, 1);
    const [width, tall, left, low] = [chart.clientWidth || 800, chart.clientHeight || 200, 86, 18];
    const [first, last] = [at[0], at.at(-1) === at[0] ? at[0] + 1 : at.at(-1)];
    toX = (value) => left + ((value - first) / (last - first)) * (width - left - 2);
    const toY = (bytes) => tall - low - (bytes / (most * 1.05)) * (tall - low - 8);
    chart.replaceChildren();
    const rough = most / 3 / MIB;
    const ten = 10 ** Math.floor(Math.log10(rough));
    const tick = [5, 2, 1].find((times) => times * ten <= rough) * ten * MIB;
    for (let bytes = 0; bytes <= most; bytes += tick) {
      const y = toY(bytes);
      add(chart, "line", { class: "grid", x1: left, x2: width, y1: y, y2: y });
      add(chart, "text", { x: left - 8, y: y + 4, "text-anchor": "end" }, tick < MIB ? mib(bytes) : `${whole(bytes / MIB)} MiB`);
    }
    const below = shown.map(() => 0);
    bands.forEach((_band, i) => {
      const lower = shown.map((_point, k) => `${toX(at[k])},${toY(below[k])}`);
      shown.forEach((point, k) => (below[k] += height(point.values, i)));
      const upper = shown.map((_point, k) => `${toX(at[k])},${toY(below[k])}`);
      add(chart, "path", { d: `M${upper.join("L")}L${lower.reverse().join("L")}Z` }).style.fill = colour(i);
    });
    if (isTimed && points.length > 1) {
      const text = (value, anchor) =>
        add(chart, "text", { x: toX(value), y: tall - 4, "text-anchor": anchor },
          `${unit === "second" ? `${NUMBER.format(value)} s` : `${unit} ${whole(value)}`}`);
      text(first, "start");
      text(last, "end");
    }
    cursor = add(chart, "line", { class: "cursor", y1: 4, y2: tall - low });
    say(now);
  };
  const nearest = (x) => at.reduce((best, value, i) => (Math.abs(toX(value) - x) < Math.abs(toX(at[best]) - x) ? i : best), 0);
  chart.addEventListener("pointermove", (event) => say(nearest(event.clientX - chart.getBoundingClientRect().left)));
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 20, PageDown: -20, Home: -1e9, End: 1e9 }[event.key];
    if (!step) return;
    event.preventDefault();
    say(now + step);
  });
  fitted(chart, layOut);
};

// Rectangles as square as possible for sizes that fall (Bruls, Huizing, van Wijk: squarified tree maps).
const squarify = (sizes, { x, y, w, h }) => {
  const boxes = [];
  let left = sum(sizes);
  while (boxes.length < sizes.length) {
    const begin = boxes.length;
    const scale = (w * h) / left || 0;
    const short = Math.min(w, h);
    const aspect = (size, row) => {
      const thick = (row * scale) / short;
      const long = (size * scale) / thick;
      return Math.max(long / thick, thick / long);
    };
    let [row, end, worst] = [0, begin, Infinity];
    while (end < sizes.length) {
      const next = row + sizes[end];
      const now = Math.max(aspect(sizes[begin], next), aspect(sizes[end], next));
      if (end > begin && now > worst) break;
      [row, worst, end] = [next, now, end + 1];
    }
    const thick = (row * scale) / short || 0;
    let along = 0;
    for (let i = begin; i < end; i++) {
      const long = (sizes[i] * scale) / thick || 0;
      boxes.push(w >= h ? { x, y: y + along, w: thick, h: long } : { x: x + along, y, w: long, h: thick });
      along += long;
    }
    if (w >= h) [x, w] = [x + thick, w - thick];
    else [y, h] = [y + thick, h - thick];
    left -= row;
  }
  return boxes;
};

const MOST_TILES = 300;

// A list box whose options are the largest rows, as tiles. What is smaller is one tile, which opens.
const drawMap = (parent, rows, groups, choose, copy) => {
  const keys = "arrows move, Enter opens or copies, Escape goes back";
  const map = add(parent, "div", { class: "map", tabindex: 0, role: "listbox", "aria-label": `Tree map; ${keys}` });
  const opened = [rows];
  let tiles = [];
  let on = -1;

  const select = (number) => {
    tiles[on]?.made.classList.remove("on");
    on = number;
    const { made, row } = tiles[on];
    made.classList.add("on");
    map.setAttribute("aria-activedescendant", made.id);
    choose(row);
  };
  const layOut = () => {
    const all = opened.at(-1);
    const shown = all.slice(0, MOST_TILES).filter(({ bytes }) => bytes > 0);
    const smaller = all.slice(MOST_TILES);
    const options = shown.map((row) => ({ row, name: row.name, bytes: row.bytes }));
    const rest = sum(smaller.map(({ bytes }) => bytes));
    if (rest) options.push({ smaller, name: `${counted(smaller.length, "smaller row")}: Enter opens`, bytes: rest });
    options.sort((one, other) => other.bytes - one.bytes);
    // Rows of one group lie together.
    const areas = new Map();
    for (const option of options) {
      const key = option.row?.group;
      if (!areas.has(key)) areas.set(key, []);
      areas.get(key).push(option);
    }
    const sized = [...areas.values()].map((inside) => ({ inside, bytes: sum(inside.map(({ bytes }) => bytes)) }));
    sized.sort((one, other) => other.bytes - one.bytes);
    const box = { x: 0, y: 0, w: map.clientWidth || 800, h: map.clientHeight || 340 };
    const around = squarify(sized.map(({ bytes }) => bytes), box);
    const placed = sized.flatMap(({ inside }, i) => {
      const boxes = squarify(inside.map(({ bytes }) => bytes), around[i]);
      return inside.map((option, k) => ({ option, box: boxes[k] }));
    });
    map.replaceChildren();
    tiles = placed.map(({ option, box: { x, y, w, h } }, i) => {
      const made = add(map, "div", { class: option.row ? "tile" : "tile rest", role: "option", id: `tile-${i}` });
      made.setAttribute("aria-label", `${option.name}, ${mib(option.bytes)}`);
      Object.assign(made.style, { left: `${x}px`, top: `${y}px`, width: `${w}px`, height: `${h}px` });
      if (option.row) made.style.background = colour(groups.get(option.row.group));
      if (w < 40 || h < 22) made.style.padding = 0;
      else add(made, "span", {}, option.name);
      if (w > 70 && h > 42) add(made, "span", {}, mib(option.bytes));
      const row = option.row ?? { name: option.name, bytes: option.bytes, cut: "", byHand: true, said: () => [] };
      return { ...option, row, made, x: x + w / 2, y: y + h / 2 };
    });
    if (tiles.length) select(Math.max(0, tiles.findIndex(({ smaller }) => !smaller)));
  };
  const open = () => {
    const { smaller, row } = tiles[on];
    if (!smaller) return copy(row);
    opened.push(smaller);
    layOut();
  };
  // The nearest tile in a direction.
  const beside = (dx, dy) => {
    const here = tiles[on];
    const far = ({ x, y }) => {
      const [along, across] = [(x - here.x) * dx + (y - here.y) * dy, Math.abs((x - here.x) * dy) + Math.abs((y - here.y) * dx)];
      return along > 1 ? along + 2 * across : Infinity;
    };
    const best = tiles.reduce((best, tile, i) => (far(tile) < far(tiles[best]) ? i : best), on);
    return far(tiles[best]) === Infinity ? on : best;
  };
  map.addEventListener("keydown", (event) => {
    const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key] ?? [0, 0];
    if (dx || dy) select(beside(dx, dy));
    else if (event.key === "Home" || event.key === "End") select(event.key === "Home" ? 0 : tiles.length - 1);
    else if (event.key === "Enter" || event.key === " ") open();
    else if (event.key === "Escape" && opened.length > 1) opened.pop() && layOut();
    else return;
    event.preventDefault();
  });
  map.addEventListener("click", (event) => {
    const number = tiles.findIndex(({ made }) => made.contains(event.target));
    if (number < 0) return;
    select(number);
    if (tiles[number].smaller) open();
  });
  fitted(map, layOut);
};
