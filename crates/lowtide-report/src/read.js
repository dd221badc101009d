// What the page shows, read from the JSON that lowtide prints (docs/json.md): charts, sources of the tree map with
// their rows, receipts, turns, and sentences.

// Rounded as receipts and answers are.
const FORMAT = { minimumFractionDigits: 1, maximumFractionDigits: 1, roundingMode: "halfEven", signDisplay: "negative" };
const NUMBER = new Intl.NumberFormat("en-US", FORMAT);
const MIB = 1048576;
const mib = (bytes) => `${NUMBER.format(bytes / MIB)} MiB`;
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 }).format;
const counted = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
const seconds = (s) => (s < 1 ? `${NUMBER.format(s * 1e3)} ms` : `${NUMBER.format(s)} s`);
// Names that others chose: characters that are invisible or turn the text around are spelled out.
const printable = (text) =>
  String(text).replace(/[\p{C}\u2028\u2029]/gu, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);
const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);
const MOST_BANDS = 8;

const REST = "the rest";

// A chart of points, each with bytes by owner. The owners with the most memory have a band each.
const chart = (title, unit, points) => {
  const most = new Map();
  for (const { parts } of points) {
    for (const [name, bytes] of parts) most.set(name, Math.max(most.get(name) ?? 0, bytes));
  }
  const named = [...most.keys()].filter((name) => most.get(name) > 0);
  const chosen = new Set([...named].sort((one, other) => most.get(other) - most.get(one)).slice(0, MOST_BANDS));
  const bands = named.filter((name) => chosen.has(name));
  const others = named.length > bands.length ? counted(named.length - bands.length, "more owner") : null;
  const values = ({ parts }) => {
    const known = bands.map((band) => parts.get(band) ?? 0);
    const rest = sum([...parts].filter(([name]) => !chosen.has(name)).map(([, bytes]) => bytes));
    return others ? [...known, rest] : known;
  };
  return {
    title,
    unit,
    bands: others ? [...bands, others] : bands,
    points: points.map((point) => ({ at: point.at, label: point.label, values: values(point) })),
  };
};

const outcomeOf = ({ outcome }) => (typeof outcome === "string" ? outcome : Object.keys(outcome)[0]);
const inUse = (reading) => reading.own_bytes ?? reading.driver_bytes;

const partsOfReading = (reading) => {
  const cached = Math.max(0, reading.reserved_bytes - reading.allocated_bytes);
  const rest = Math.max(0, inUse(reading) - reading.allocated_bytes - cached);
  return new Map([["live", reading.allocated_bytes], ["cached", cached], ["context and all else", rest]]);
};

const partsOfLedger = (ledger) => {
  const parts = new Map();
  for (const { kind, name, bytes } of ledger.lines) {
    const key = printable(kind === "live" ? name || kind : `${kind.replaceAll("_", " ")} ${name}`.trim());
    parts.set(key, (parts.get(key) ?? 0) + bytes);
  }
  return parts.set("unknown", Math.max(0, ledger.unknown_bytes));
};

// A device of `ps`, by process.
const partsOfProcesses = ({ processes, unattributed_bytes, reserved_bytes }) => {
  const parts = processes.map(({ pid, command, bytes }) => [printable(`${pid} ${command ?? ""}`.trim()), bytes ?? 0]);
  return new Map([...parts, ["unattributed", Math.max(0, unattributed_bytes)], ["reserved", reserved_bytes]]);
};

// The name of the first variable of a path, by which the tree map groups.
const rootOf = (path) => /^[\p{L}\w ]+/u.exec(path)?.[0].trim() || path;

// Numbers are shorter in the notebook that asked; elsewhere a statement says more.
const remedy = (cut, plan, isSmall) => {
  if (isSmall && cut.number) return `lowtide.cut(${cut.number})${cut.code?.length <= 80 ? `  # or ${cut.code}` : ""}`;
  if (cut.code) return cut.code;
  if (cut.number && plan) return `lowtide.cut(${cut.number}, of=${JSON.stringify(plan)})`;
  return cut.steps.map((step) => step.action).join("; then ");
};

const rowsOfAnswer = (answer, isSmall) => {
  const plan = answer.plan?.name;
  const rows = answer.held.map((held) => {
    const [cut, ...others] = held.cuts;
    const said = () => [
      `${held.type}, ${counted(held.tensors, "piece")}`,
      ...held.holders.slice(1, 4).map((holder) => `also ${holder.path}`),
      held.invisible && `${counted(held.invisible, "reference")} not visible: native code, or a call in progress`,
      cut?.goes.length && `goes too: ${cut.goes.join(", ")}`,
      ...others.map((other) => `or ${remedy(other, plan)}`),
    ];
    return {
      name: held.in_use ? `${held.path}, in use` : held.path, group: rootOf(held.path), bytes: held.bytes, said,
      cut: cut ? remedy(cut, plan, isSmall) : held.by_hand ?? held.why_no_cut ?? "", byHand: !cut || !(cut.code || cut.number),
    };
  });
  const row = (name, bytes, cut, byHand, said) => ({ name, group: name, bytes, cut, byHand, said: () => [said] });
  for (const { type, objects, bytes, frozen } of answer.dead) {
    const name = `reference cycle of ${counted(objects, "object")} with ${type}`;
    rows.push(row(name, bytes, `import gc; ${frozen ? "gc.unfreeze(); " : ""}gc.collect()`, false));
  }
  for (const { type, references, bytes } of answer.native) {
    const said = `${counted(references, "reference")} that Python cannot see`;
    rows.push(row(`native code holds a ${type}`, bytes, "end or close the library object that uses it", true, said));
  }
  for (const { action, bytes, about, by_hand } of answer.actions) {
    rows.push(row(about || action, bytes ?? 0, action, by_hand));
  }
  const more = answer.rest_held && counted(answer.rest_held, "more object");
  if (more) rows.push(row(more, answer.rest_bytes, "ask again when these are gone", true));
  return rows;
};

const rowsOfHolders = (holders) =>
  holders.map(({ path, holds, count, bytes, cut, by_hand }) => ({
    name: path, group: rootOf(path), bytes: bytes ?? 0, cut: cut ?? by_hand ?? "", byHand: !cut,
    said: () => [`${holds}, ${counted(count, "reference")}`],
  }));

const rowsOfTrace = ({ blocks, rest_blocks, rest_bytes }) => {
  const rows = blocks.map(({ block, stream, bytes, from, until }) => ({
    name: `block ${block}`, group: `stream ${stream}`, bytes, byHand: true,
    cut: until === null ? "never freed" : `freed by event ${whole(until)}`,
    said: () => [`stream ${stream}, allocated by event ${whole(from)}`],
  }));
  const more = { name: counted(rest_blocks, "smaller block"), group: "smaller", bytes: rest_bytes, cut: "", byHand: true, said: () => [] };
  return rest_blocks ? [...rows, more] : rows;
};

const pointsOfStages = (stages) => {
  const points = [];
  let base = null;
  for (const { name, own_peak_bytes: own, peak_bytes: peak, receipt } of stages) {
    base ??= peak - own;
    const point = (label, bytes) => {
      const left = new Map([["before the first stage", Math.min(base, peak - own)]]);
      left.set("left by earlier stages", Math.max(0, peak - own - base));
      points.push({ label: `${printable(name)}: ${label}`, parts: left.set(printable(name), Math.max(0, bytes)) });
    };
    point("begins", 0);
    point("peak", own);
    point("ended", (inUse(receipt.after) ?? peak) - (peak - own));
  }
  return points;
};

const pointsOfReceipts = (receipts) =>
  receipts.flatMap((receipt) => {
    const rungs = receipt.rungs.filter((rung) => outcomeOf(rung) !== "skipped");
    const readings = [["before", receipt.before], ...rungs.map((rung) => [rung.rung, rung.after]), ["after", receipt.after]];
    return readings
      .filter(([, reading]) => inUse(reading) != null)
      .map(([label, reading]) => ({ label: `${printable(receipt.name)}: ${label}`, parts: partsOfReading(reading) }));
  });

const turnsOf = (queue) => {
  const turn = (one, state, said) => ({
    name: `${one.pid} ${one.command}`, state, since: one.since_s ?? 0, said,
    bytes: sum((one.devices ?? []).map((device) => device.bytes)),
  });
  return [
    ...queue.holders.map((one) => turn(one, one.state ?? "does not share", one.unmovable ?? "")),
    ...queue.waiters.map((one) => turn(one, "waits", one.why ?? "")),
  ];
};

// Everything in some documents, wherever it stands in them.
const read = ({ documents, small: isSmall }) => {
  const found = { charts: [], sources: [], receipts: [], turns: [], says: [] };
  const ledgers = new Map();
  const ofReceipts = [];
  const visit = (one, at, inStage) => {
    if (one === null || typeof one !== "object") return;
    if (Array.isArray(one)) return one.forEach((part) => visit(part, at, inStage));
    if (one.blocks && one.points) {
      const points = one.points.map(({ at, streams }) => ({ at, parts: new Map(Object.entries(streams)) }));
      found.charts.push(chart("Memory over time, by stream", "event", points));
      found.sources.push({ name: `the peak, at event ${whole(one.peak_at)}`, rows: rowsOfTrace(one) });
      return;
    }
    if (one.held && one.cuts === undefined && one.rungs === undefined) {
      found.sources.push({ name: one.plan?.name || `why ${one.target ?? one.device}`, rows: rowsOfAnswer(one, isSmall) });
      if (one.plan?.all?.length > 1) {
        const plan = `lowtide.cut("all", of=${JSON.stringify(one.plan.name)})`;
        found.says.push({ text: `Cuts ${one.plan.all.join(", ")} free ${mib(one.plan.bytes)}:`, code: plan });
      }
      found.says.push(...one.notes.map((text) => ({ text })));
      return;
    }
    if (one.rungs && one.verdict) {
      found.receipts.push({ at_s: at, ...one });
      if (!inStage) ofReceipts.push(one);
      if (one.holders.length) found.sources.push({ name: `left after ${one.name}`, rows: rowsOfHolders(one.holders) });
      return;
    }
    const isLedger = one.lines && one.driver_bytes !== undefined;
    if (isLedger || (one.processes && one.total_bytes !== undefined)) {
      const device = one.device ?? one.id ?? one.uuid;
      if (!ledgers.has(device)) ledgers.set(device, []);
      ledgers.get(device).push({ at, parts: isLedger ? partsOfLedger(one) : partsOfProcesses(one) });
      return;
    }
    if (one.queue) return found.turns.push(...turnsOf(one.queue));
    const isStages = Array.isArray(one.stages) && one.peak_bytes !== undefined;
    if (isStages && one.stages.length) {
      found.charts.push(chart("Memory over the stages, by stage", "step", pointsOfStages(one.stages)));
      const share = NUMBER.format(one.cleaning_share * 100);
      found.says.push({
        text: `Peak ${mib(one.peak_bytes)}, largest stage ${mib(one.largest_bytes)}, all stages ${mib(one.sum_bytes)}. ` +
          `Freeing memory took ${seconds(one.cleaning_s)}, ${share}% of the time.`,
      });
    }
    for (const text of one.obstacles ?? []) found.says.push({ text: `Cannot sleep: ${text}` });
    for (const text of [one.reason ?? [], one.notes ?? []].flat()) found.says.push({ text });
    for (const part of Object.values(one)) visit(part, one.at_s ?? at, inStage || isStages);
  };
  visit(documents);
  for (const [device, points] of ledgers) {
    const from = points[0].at;
    const timed = points.map((point) => ({ ...point, at: from === undefined ? undefined : point.at - from }));
    found.charts.push(chart(`Memory on ${device}, by owner`, from === undefined ? "step" : "second", timed));
  }
  if (ofReceipts.length) {
    const points = pointsOfReceipts(ofReceipts);
    if (points.length) found.charts.push(chart("Memory over the releases", "step", points));
  }
  for (const source of found.sources) {
    source.rows.forEach((row) => (row.name = printable(row.name)));
    source.rows.sort((one, other) => other.bytes - one.bytes);
  }
  return found;
};
