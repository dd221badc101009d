// The page: one part for each thing that was read, the long lists in pieces so that the page answers meanwhile.

const CHUNK = 40;
// Of a table with more rows, each element counts.
const MANY = 200;
const later = (work) => setTimeout(work, 0);

// Adds one child for each item, some for each frame.
const addEach = (items, addOne) => {
  let next = 0;
  const step = () => {
    const parts = items.slice(next, (next += CHUNK));
    if (parts.length) addOne(parts);
    if (next < items.length) requestAnimationFrame(() => later(step));
  };
  step();
};

const copyText = async (text, button) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = add(document.body, "textarea", {}, text);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  const said = button.textContent;
  button.textContent = "copied";
  setTimeout(() => (button.textContent = said), 1200);
};

const copyButton = (text, attributes = {}) => {
  const button = add(null, "button", { type: "button", ...attributes }, "copy");
  button.addEventListener("click", () => copyText(text, button));
  return button;
};

const todo = (text, byHand) => {
  const made = add(null, "div", { class: "todo" }, add(null, byHand ? "span" : "code", {}, text));
  if (!byHand && text) made.append(copyButton(text));
  return made;
};

// The table with the rows of the tree map. One row is a tab stop, the arrows move it.
const drawRows = (parent, rows, choose, copy) => {
  const isLong = rows.length > MANY;
  const columns = ["held by", "size", "cut, or what to do", ...(isLong ? [] : [""])];
  const table = add(parent, "div", { class: isLong ? "rows long" : "rows", role: "table", "aria-label": "Who holds what", "aria-rowcount": rows.length + 1 });
  const head = add(add(table, "div", { role: "rowgroup", class: "head" }), "div", { role: "row" });
  for (const name of columns) add(head, "span", { role: "columnheader" }, name);
  const made = [];
  addEach(rows, (some) => {
    const group = add(null, "div", { role: "rowgroup" });
    group.style.setProperty("--count", some.length);
    for (const row of some) {
      const line = add(group, "div", { role: "row", tabindex: made.length ? -1 : 0 });
      add(line, "span", { role: "cell", class: "name" }, row.name);
      add(line, "span", { role: "cell", class: "size" }, mib(row.bytes));
      add(line, "span", { role: "cell", class: row.byHand ? "" : "code" }, row.cut);
      // Of a long table, the chosen row has its button above.
      if (!isLong && !row.byHand) add(add(line, "span", { role: "cell" }), "button", { type: "button", tabindex: -1 }, "copy");
      made.push(line);
    }
    table.append(group);
  });
  const focus = (line) => {
    table.querySelector("[role=row][tabindex='0']")?.setAttribute("tabindex", -1);
    line.setAttribute("tabindex", 0);
    line.focus();
  };
  const isShown = (line) => !line.classList.contains("out");
  table.addEventListener("keydown", (event) => {
    const here = made.indexOf(document.activeElement);
    const shown = made.filter(isShown);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
    if (here < 0 || (!step && event.key !== "Enter")) return;
    event.preventDefault();
    if (!step) return copy(rows[here]);
    const next = Math.max(0, Math.min(shown.length - 1, shown.indexOf(made[here]) + step));
    focus(shown[next]);
  });
  table.addEventListener("focusin", (event) => made.includes(event.target) && choose(rows[made.indexOf(event.target)]));
  table.addEventListener("click", (event) => {
    const here = made.indexOf(event.target.closest("[role=row]"));
    if (here < 0) return;
    if (event.target.tagName === "BUTTON") copyText(rows[here].cut, event.target);
    else focus(made[here]);
  });
  return (wanted) => {
    table.classList.toggle("searched", wanted !== "");
    made.forEach((line, i) => line.classList.toggle("out", !rows[i].name.toLowerCase().includes(wanted)));
  };
};

const drawHolders = (parent, sources) => {
  add(parent, "h2", {}, "Who holds what");
  const bar = add(parent, "div", { class: "bar" });
  const chosen = add(bar, "select", { "aria-label": "What is shown" });
  sources.forEach(({ name }, i) => add(chosen, "option", { value: i }, printable(name)));
  chosen.hidden = sources.length < 2;
  const about = add(bar, "span", { class: "soft" });
  const search = add(bar, "input", { type: "search", placeholder: "search names", "aria-label": "Search names in the table" });
  const body = add(parent, "div");
  const show = () => {
    const { rows } = sources[chosen.value || 0];
    const all = sum(rows.map(({ bytes }) => bytes));
    about.textContent = `${counted(rows.length, "row")}, ${mib(all)}`;
    body.replaceChildren();
    search.value = "";
    search.hidden = rows.length < 12;
    // The largest groups have a colour each.
    const sizes = new Map();
    for (const { group, bytes } of rows) sizes.set(group, (sizes.get(group) ?? 0) + bytes);
    const largest = [...sizes].sort(([, one], [, other]) => other - one);
    const groups = new Map(largest.map(([group], i) => [group, i]));
    const map = add(body, "div");
    const detail = add(body, "div", { class: "detail", role: "status" });
    const choose = (row) => {
      const share = all ? `, ${NUMBER.format((row.bytes / all) * 100)}%` : "";
      detail.replaceChildren(add(null, "b", {}, row.name), ` ${mib(row.bytes)}${share}`);
      for (const said of row.said().filter(Boolean)) add(detail, "div", { class: "soft" }, printable(said));
      if (row.cut) detail.append(todo(row.cut, row.byHand));
    };
    const copy = (row) => !row.byHand && copyText(row.cut, detail.querySelector("button"));
    drawMap(map, rows, groups, choose, copy);
    const filter = drawRows(body, rows, choose, copy);
    search.oninput = () => filter(search.value.toLowerCase());
  };
  chosen.addEventListener("change", show);
  show();
};

const lane = (parent, from, length, all, number) => {
  const bar = add(add(parent, "span", { class: "lane" }), "i");
  Object.assign(bar.style, { left: `${(from / all) * 100}%`, width: `${(length / all) * 100}%`, background: colour(number) });
};

const written = (at_s) => `${new Date(at_s * 1e3).toISOString().slice(0, 19).replace("T", " ")} UTC`;

const changed = (before, after) => (before == null || after == null ? "" : `${mib(before)} → ${mib(after)}`);

const drawReceipts = (parent, receipts) => {
  add(parent, "h2", {}, "Receipts");
  const isTimed = receipts.every((receipt) => receipt.at_s != null);
  // Receipts of one answer have one time, and came one after another.
  let [last, end] = [0, 0];
  const spans = receipts.map((receipt) => {
    const begin = isTimed && receipt.at_s !== last ? receipt.at_s : end;
    [last, end] = [receipt.at_s, begin + receipt.took_s];
    return { receipt, begin };
  });
  const first = Math.min(...spans.map(({ begin }) => begin));
  const span = Math.max(...spans.map(({ receipt, begin }) => begin + receipt.took_s)) - first || 1;
  const said = isTimed ? `${seconds(span)}, from ${written(first)}` : `${seconds(span)} of releases, one after another`;
  add(parent, "p", { class: "soft" }, `${counted(receipts.length, "receipt")} in ${said}`);
  const list = add(parent, "ol", { class: "line" });
  const addOne = ({ receipt, begin }) => {
    const item = add(add(list, "li"), "details");
    const top = add(item, "summary");
    add(top, "span", { class: "name" }, printable(receipt.name));
    const isGood = ["released"].includes(receipt.verdict);
    add(top, "span", { class: isGood ? "good" : "bad" }, receipt.verdict);
    lane(top, begin - first, receipt.took_s, span, isGood ? 2 : 1);
    add(top, "span", { class: "when" }, seconds(receipt.took_s));
    const open = () => {
      if (!item.open || item.children.length > 1) return;
      const inside = add(item, "div", { class: "inside" });
      const freed = receipt.freed_bytes == null ? "" : `${mib(receipt.freed_bytes)} freed`;
      const claim = receipt.claim ? ` of ${mib(receipt.claim.bytes)} claimed` : "";
      const when = isTimed ? `at ${written(begin).slice(11)}` : "";
      add(inside, "p", {}, [when, freed + claim, changed(inUse(receipt.before), inUse(receipt.after))].filter(Boolean).join(", "));
      let offset = begin - first;
      for (const rung of receipt.rungs) {
        const line = add(inside, "div", { class: "rung" });
        const outcome = outcomeOf(rung);
        add(line, "span", {}, `${rung.rung}${outcome === "done" ? "" : `: ${outcome}`}`);
        add(line, "span", {}, rung.freed_bytes ? mib(rung.freed_bytes) : "");
        lane(line, offset, rung.took_s, span, 0);
        offset += rung.took_s;
        add(line, "span", { class: "when" }, seconds(rung.took_s));
      }
      for (const advice of receipt.advice) add(inside, "p", {}, `→ ${printable(advice)}`);
    };
    item.addEventListener("toggle", open);
  };
  addEach(spans, (some) => some.forEach(addOne));
};

const drawTurns = (parent, turns) => {
  add(parent, "h2", {}, "Turns");
  const longest = Math.max(...turns.map(({ since }) => since), 1);
  add(parent, "p", { class: "soft" }, `The last ${seconds(longest)}: how long each has been in its state`);
  const list = add(parent, "ol", { class: "line" });
  for (const turn of turns) {
    const line = add(add(list, "li"), "div", { class: "turn" });
    add(line, "span", { class: "name" }, printable(turn.name), turn.said ? add(null, "span", { class: "soft" }, ` ${printable(turn.said)}`) : "");
    add(line, "span", {}, turn.state);
    lane(line, longest - turn.since, turn.since, longest, turn.state === "waits" ? 1 : 2);
    add(line, "span", { class: "when" }, mib(turn.bytes));
  }
};

const show = (data) => {
  const main = add(null, "div");
  document.querySelector("main").replaceChildren(main);
  document.documentElement.classList.toggle("small", Boolean(data.small));
  document.title = `${printable(data.title)} · lowtide`;
  add(main, "h1", {}, printable(data.title));
  later(() => showAll(main, data));
};

// Reading and each part are tasks of their own, so that the first is seen before the last is made.
const showAll = (main, data) => {
  const found = read(data);
  for (const { text, code } of found.says) {
    if (code) add(main, "div", {}, todo(code, false)).firstChild.prepend(add(null, "span", { class: "soft" }, text));
    else add(main, "p", { class: "soft" }, printable(text));
  }
  const sources = found.sources.filter(({ rows }) => rows.length);
  const parts = [
    ...found.charts.map((one) => (part) => add(part, "h2", {}, one.title) && drawChart(part, one)),
    sources.length && ((part) => drawHolders(part, sources)),
    found.turns.length && ((part) => drawTurns(part, found.turns)),
    found.receipts.length && ((part) => drawReceipts(part, found.receipts)),
  ];
  for (const draw of parts.filter(Boolean)) {
    const part = add(main, "section");
    later(() => draw(part));
  }
  add(main, "footer", {}, `lowtide ${data.version}${data.at_s ? ` · ${written(data.at_s)}` : ""}`);
};

later(() => show(JSON.parse(document.getElementById("data").textContent)));
// A notebook shows a cell that runs.
window.addEventListener("message", (event) => event.source === window.parent && show(event.data));
