"use strict";

// The page asks /state for what is new, shows it, and posts to /control what its user chooses. Everything is put into
// the page as text or attribute, never as HTML.

const element = (id) => document.getElementById(id);
const state = {};
const TRAINING = "#8a93a1";
const SHIFTS = ["#0072b2", "#009e73", "#56b4e9", "#e69f00", "#d55e00"];
const OTHER = "#cc79a7";
const SECOND = "#d55e00";

// ---------------------------------------------------------------- asking

async function follow() {
  let after = 0;
  for (;;) {
    try {
      const answer = await read(await fetch(`state?after=${after}`));
      after = answer.version;
      Object.assign(state, answer.parts);
      if (state.run2) addSecond();
      for (const name of Object.keys(answer.parts)) showPart(name);
      lost = null;
      showStatus();
    } catch (error) {
      lost = error;
      showStatus();
      await new Promise((done) => setTimeout(done, 1000));
    }
    await new Promise(requestAnimationFrame); // a hidden page asks nothing, and the simulation rests
  }
}

async function read(response) {
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// Changes are sent one after another; those that come meanwhile are sent together.
let wanted = {};
let sending = false;

async function control(values) {
  Object.assign(wanted, values);
  if (sending) return;
  sending = true;
  try {
    while (Object.keys(wanted).length) {
      const body = JSON.stringify(wanted);
      wanted = {};
      const headers = { "Content-Type": "application/json" };
      Object.assign(state, await read(await fetch("control", { method: "POST", headers, body })));
      showNote(state.note);
    }
  } catch (error) {
    wanted = {};
    showNote(error.message);
  } finally {
    sending = false;
    if (state.settings) show.settings(state.settings);
  }
}

// ---------------------------------------------------------------- showing

let lost = null; // why the server does not answer
let busySince = 0;

// The parts of the second agent, and its elements, have the names of the first agent's and a 2: run2, frame2, look2 ...
const AGENTS = ["", "2"];
const PER_AGENT = ["run", "frame", "look", "progress", "learning"];
const agentsShown = () => AGENTS.filter((of) => state[`run${of}`] && !element(`agent${of}`).hidden);

const show = {
  run(run, of) {
    element(`checkpoint${of}`).textContent = run.step.toLocaleString("en");
    if (!of) {
      fill(element("shift"), run.shifts);
      fill(element("method"), run.methods);
    }
    if (state.settings) show.settings(state.settings);
    showNames();
    showAbout();
    drawLearning(of);
  },

  settings(settings) {
    for (const name of ["shift", "method", "seed", "episode", "rho", "speed"]) {
      const field = element(name);
      if (sending || (field === document.activeElement && field.type === "number")) continue;
      if (name === "speed") choose(field, settings.speed);
      else field.value = settings[name];
    }
    element("pause").textContent = settings.paused ? "Play" : "Pause";
    if (!sending) showRho(settings.rho);
  },

  frame(frame, of) {
    for (const name of ["observation", "body", "predicted"]) draw(name + of, frame[name]);
    element(`predicted-none${of}`).textContent = "this agent has no decoder";
    element(`observation-about${of}`).textContent = `${frame.shift}, seed ${frame.seed}, episode ${frame.episode}`;
    element(`body-none${of}`).textContent = "this task has no masks";
    const body = frame.body_share ? `${percent(frame.body_share)} of the image` : "not in view";
    element(`body-about${of}`).textContent = frame.body ? body : "";
    number(`at${of}`, String(frame.step), ` / ${frame.steps}${frame.over ? " over" : ""}`);
    number(`return${of}`, short(frame.return, 1));
    number(`reward${of}`, short(frame.rewards.at(-1), 3));
    number(`value${of}`, short(frame.value, 2));
    drawEpisode();
    showLag(of);
    showAbout();
  },

  look(look, of) {
    const failed = look && look.error;
    for (const name of ["attribution", "mask"].map((name) => name + of)) {
      element(name).parentElement.classList.toggle("stale", !look);
      if (look) draw(name, look[name.replace(of, "")]);
      if (failed) element(name).nextElementSibling.textContent = look.error;
    }
    number(`share${of}`, look && !failed ? percent(look.share) : "–");
    number(`chance${of}`, look && !failed ? percent(look.chance) : "–");
    element(`scale${of}`).textContent = look && look.scale ? scientific(look.scale) : "";
    element(`attribution-about${of}`).textContent = look ? look.method : "";
    element(`kept${of}`).textContent = look && !failed ? `kept, ${percent(look.kept)}` : "kept";
    element(`mask-about${of}`).textContent = look && !failed ? (look.soft ? "soft" : `rho ${look.rho}`) : "";
    showLag(of);
  },

  busy() {
    busySince = performance.now();
    setTimeout(showStatus, 400);
  },

  progress: (progress, of) => showLag(of),
  note: (note) => showNote(note),
  learning: (learning, of) => drawLearning(of),
};

// A part by its name, which may end in the number of its agent.
function showPart(name) {
  const of = PER_AGENT.includes(name.replace(/2$/, "")) && name.endsWith("2") ? "2" : "";
  const kind = name.slice(0, name.length - of.length);
  if (kind in show && (!of || state.run2)) show[kind](state[name], of);
}

// Places for a second agent: copies of those of the first, under ids that end in 2.
function addSecond() {
  if (element("agent2")) return;
  for (const id of ["agent", "learning"]) {
    const copy = element(id).cloneNode(true);
    for (const one of [copy, ...copy.querySelectorAll("[id]")]) one.id += "2";
    for (const image of copy.querySelectorAll("img")) image.removeAttribute("src");
    copy.classList.add("second");
    element(id).after(copy);
  }
  element("charts").classList.add("pair");
  element("main").classList.add("pair");
  fill(element("shown"), ["both", "first", "second"]);
  element("shown-label").hidden = false;
  for (const of of AGENTS) for (const id of ["name", "learning-of"]) element(id + of).hidden = false;
  redrawOnResize();
}

function showNames() {
  const runs = AGENTS.map((of) => state[`run${of}`]).filter(Boolean);
  const names = runs.map((run) => run.agent);
  const same = new Set(names).size < names.length;
  const long = (run) => `${run.agent}, run ${run.seed}, ${run.step.toLocaleString("en")} steps`;
  const labels = runs.map((run) => (same ? long(run) : run.agent));
  const title = `${names.join(" and ")} on ${runs[0].task}`;
  element("title").textContent = title;
  document.title = `${title} · sgqn watch`;
  if (runs.length < 2) return;
  AGENTS.forEach((of, i) => {
    element(`name${of}`).textContent = labels[i];
    element(`learning-of${of}`).textContent = labels[i];
    element("shown").options[i + 1].textContent = labels[i];
  });
}

// Which of two agents are shown: a matter of this page alone, as the simulation plays both.
function choosePart() {
  const chosen = element("shown").value;
  AGENTS.forEach((of, i) => {
    const hidden = chosen !== "both" && chosen !== ["first", "second"][i];
    element(`agent${of}`).hidden = element(`learning${of}`).hidden = hidden;
  });
  element("main").classList.toggle("pair", chosen === "both");
  drawEpisode();
  for (const of of AGENTS) drawLearning(of);
}

// Return, reward and value of the episode: a line for each agent that is shown.
function drawEpisode() {
  const lines = { return: [], reward: [], value: [] };
  let steps = 1;
  for (const of of agentsShown()) {
    const frame = state[`frame${of}`];
    if (!frame) continue;
    const color = of ? SECOND : SHIFTS[0];
    const sums = [];
    frame.rewards.reduce((sum, reward, i) => (sums[i] = sum + reward), 0);
    const line = (values, from) => ({ color, points: values.map((value, i) => [i + from, value]) });
    lines.return.push(line([0, ...sums], 0));
    lines.reward.push(line(frame.rewards, 1));
    lines.value.push(line(frame.values, 0));
    steps = Math.max(steps, frame.steps);
  }
  for (const name of Object.keys(lines))
    chart(element(`${name}-chart`), lines[name], { x: [0, steps], zero: name !== "value" });
}

function draw(name, source) {
  if (source) element(name).src = source;
  else element(name).removeAttribute("src");
}

function number(id, text, small) {
  const field = element(id);
  field.textContent = text;
  if (small) field.append(Object.assign(document.createElement("small"), { textContent: small }));
}

function fill(select, names) {
  if (select.options.length !== names.length) select.replaceChildren(...names.map((name) => new Option(name, name)));
}

function choose(select, value) {
  const there = () => [...select.options].find((option) => Number(option.value) === value);
  if (!there()) select.add(new Option(`${value} ×`, value));
  select.value = there().value;
}

function showRho(rho) {
  element("rho-shown").textContent = `${rho.toFixed(3)}, keeps ${Number((100 * (1 - rho)).toFixed(1))} %`;
}

// Which step the mask is of, where it is not the newest, and how far the next one is.
function showLag(of) {
  const [look, frame, progress] = ["look", "frame", "progress"].map((name) => state[name + of]);
  const parts = [];
  if (look && frame && !look.error && look.step !== frame.step) parts.push(`of step ${look.step}`);
  if (progress) parts.push(`next ${Math.round((100 * progress.done) / progress.total)} %`);
  element(`lag${of}`).textContent = parts.join(", ");
}

function showAbout() {
  const { run, frame } = state;
  if (!run || !frame) return;
  const seed = state.run2 ? "" : `run ${run.seed} · `;
  element("about").textContent = `${seed}renderer ${frame.renderer} · backgrounds ${frame.backgrounds}`;
}

function showNote(note) {
  element("note").hidden = !note;
  element("note").textContent = note || "";
}

function showStatus() {
  const paused = state.settings && state.settings.paused;
  const busy = performance.now() - busySince > 300 && state.busy; // a moment is not worth a word
  const kind = lost ? "lost" : busy ? "waiting" : paused ? "paused" : "live";
  element("status").className = kind;
  element("status").textContent = lost ? "connection lost, trying again" : busy || kind;
  element("status").title = lost ? lost.message : "";
}

// Shifts have their colours in the order in which the task lists them.
function colorOf(shift) {
  const shifts = state.run ? state.run.shifts : [];
  return SHIFTS[shifts.indexOf(shift)] || OTHER;
}

function drawLearning(of) {
  const [learning, run] = ["learning", "run"].map((name) => state[name + of]);
  if (!learning || !run) return;
  const about = element(`learning-about${of}`);
  element(`learning${of}`).classList.toggle("none", Boolean(learning.error));
  if (learning.error) return void (about.textContent = learning.error);
  const [done, all] = [learning.step, learning.steps].map((steps) => steps.toLocaleString("en"));
  about.textContent = `return by training step, ${done} of ${all} done`;
  const series = [{ name: "training", color: TRAINING, points: learning.training }];
  for (const [shift, points] of Object.entries(learning.evaluations))
    series.push({ name: shift, color: colorOf(shift), points, dots: true });
  const shown = series.filter((one) => one.points.length);
  const last = Math.max(learning.step, run.step, ...shown.flatMap((one) => one.points.map((point) => point[0])));
  chart(element(`learning-chart${of}`), shown, { x: [0, Math.max(1, last)], zero: true, now: run.step });
  element(`legend${of}`).replaceChildren(...shown.map(legend));
}

function legend(one) {
  const label = document.createElement("span");
  const sign = svg("svg", { viewBox: "0 0 16 8" });
  sign.append(svg("path", { d: "M1 4H15", stroke: one.color }));
  if (one.dots) sign.append(svg("circle", { cx: 8, cy: 4, r: 3, fill: one.color }));
  label.append(sign, one.name);
  return label;
}

const scientific = (value) => (value < 1e-2 || value >= 1e4 ? value.toExponential(1) : value.toPrecision(2));
const short = (value, digits) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`);

// ---------------------------------------------------------------- curves

function svg(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Lines of points [x, y] on axes from `x`; from zero up, if `zero`; with a line where `now` is.
function chart(canvas, series, { x, zero, now }) {
  canvas.redraw = () => chart(canvas, series, { x, zero, now });
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width) return;
  const drawn = series.map((one) => ({ ...one, points: one.points.filter((point) => Number.isFinite(point[1])) }));
  const values = drawn.flatMap((one) => one.points.map((point) => point[1]));
  const parts = [];
  const [low, high, ticks] = range(zero ? [0, ...values] : values);
  const left = 10 + 6.3 * Math.max(...ticks.map((tick) => label(tick).length));
  const at = {
    x: (value) => left + ((width - left - 12) * (value - x[0])) / (x[1] - x[0]),
    y: (value) => height - 20 - ((height - 28) * (value - low)) / (high - low),
  };
  for (const tick of ticks) {
    const kind = tick === 0 ? "zero" : "grid";
    parts.push(svg("line", { x1: left, x2: width - 12, y1: at.y(tick), y2: at.y(tick), class: kind }));
    parts.push(svg("text", { x: left - 6, y: at.y(tick) + 4, "text-anchor": "end" }, label(tick)));
  }
  for (const tick of range(x, Math.max(2, Math.floor(width / 60)))[2]) {
    const place = { x: at.x(tick), y: height - 5, "text-anchor": at.x(tick) > width - 24 ? "end" : "middle" };
    if (tick <= x[1]) parts.push(svg("text", place, label(tick)));
  }
  if (now !== undefined)
    parts.push(svg("line", { x1: at.x(now), x2: at.x(now), y1: 8, y2: height - 20, class: "now" }));
  for (const { points, color, dots } of drawn) {
    const d = points.map(([a, b], i) => `${i ? "L" : "M"}${at.x(a).toFixed(1)} ${at.y(b).toFixed(1)}`).join("");
    parts.push(svg("path", { d, stroke: color }));
    if (dots || points.length === 1)
      for (const [a, b] of points) parts.push(svg("circle", { cx: at.x(a), cy: at.y(b), r: 3, fill: color }));
  }
  if (!values.length)
    parts.push(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "empty" }, "nothing yet"));
  canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
  canvas.replaceChildren(...parts);
}

// Round limits around the numbers, and round ticks between them.
function range(values, count = 4) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (!Number.isFinite(low)) [low, high] = [0, 1];
  if (high - low < 1e-9 * Math.max(1, Math.abs(high))) [low, high] = low === 0 ? [0, 1] : [low - 0.5, high + 0.5];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const [first, last] = [Math.floor(low / step + 1e-6), Math.ceil(high / step - 1e-6)];
  const ticks = [];
  for (let i = first; i <= last; i++) ticks.push(Number((i * step).toPrecision(12)));
  return [ticks[0], ticks.at(-1), ticks];
}

function label(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  return String(value);
}

// ---------------------------------------------------------------- choosing

for (const name of ["shift", "method"])
  element(name).addEventListener("change", (event) => control({ [name]: event.target.value }));
element("shown").addEventListener("change", choosePart);
element("speed").addEventListener("change", (event) => control({ speed: Number(event.target.value) }));
for (const name of ["seed", "episode"])
  element(name).addEventListener("change", (event) => {
    if (!event.target.reportValidity()) return;
    control({ [name]: Number(event.target.value) });
    event.target.blur();
  });
element("rho").addEventListener("input", (event) => {
  const rho = Number(event.target.value);
  showRho(rho);
  control({ rho });
});
element("pause").addEventListener("click", () => control({ paused: !state.settings.paused }));
element("step").addEventListener("click", () => control({ step: true }));
element("restart").addEventListener("click", () => control({ restart: true }));
element("controls").addEventListener("submit", (event) => event.preventDefault());

const KEYS = { " ": "pause", ArrowRight: "step", r: "restart" };
document.addEventListener("keydown", (event) => {
  const busy = ["INPUT", "SELECT", "BUTTON"].includes(event.target.tagName);
  if (busy || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  element(KEYS[event.key]).click();
});

function redrawOnResize() {
  for (const canvas of document.querySelectorAll("#charts figure > svg")) if (canvas.redraw) canvas.redraw();
}

new ResizeObserver(redrawOnResize).observe(element("charts"));

follow();
