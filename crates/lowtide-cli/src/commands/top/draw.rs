//! Draws the screen of `top`: a function of what is shown and of the room there is.

use std::borrow::Cow;
use std::collections::BTreeMap;

use lowtide_types::signed;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::chart::{cells, sign};
use super::screen::Screen;
use crate::commands::look::{Band, DeviceLook, ProgramLook, ProgramState};

/// The rows of the memory over time: at most, and at least.
const CHART_MOST: u16 = 8;
const CHART_LEAST: u16 = 2;
/// The cells of a device that is shown as one bar.
const BAR: usize = 30;
/// The rows of what could not be read, at most.
const PROBLEMS_MOST: usize = 4;
/// The rows that are not programs or memory: title, device, two of the legend, heading, detail and keys.
const FRAME: u16 = 7;

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let area = frame.area();
    let others = u16::try_from(screen.look.devices.len().saturating_sub(1)).unwrap_or(u16::MAX);
    let mut problems: Vec<String> =
        screen.look.problems.iter().flat_map(|one| wrapped(one, area.width)).collect();
    problems.truncate(PROBLEMS_MOST);
    let problem_rows = u16::try_from(problems.len()).unwrap_or_default();
    let left =
        area.height.saturating_sub(FRAME).saturating_sub(others).saturating_sub(problem_rows);
    let chart =
        if screen.device().is_some() { (left / 2).clamp(CHART_LEAST, CHART_MOST) } else { 0 };
    let legend = if screen.device().is_some() { 3 } else { 0 };
    let rows = [1, others, problem_rows, legend, chart].map(Constraint::Length);
    let below =
        [Constraint::Length(1), Constraint::Min(1), Constraint::Length(1), Constraint::Length(1)];
    let areas = Layout::vertical(rows.into_iter().chain(below)).split(area);
    let title = title(screen);
    frame.render_widget(Line::styled(title, bold(screen)), areas[0]);
    let shown = screen.device();
    for (row, device) in
        areas[1].rows().zip(screen.look.devices.iter().filter(|it| Some(*it) != shown))
    {
        frame.render_widget(bar(screen, device), row);
    }
    frame.render_widget(Text::from_iter(problems), areas[2]);
    if let Some(device) = shown {
        device_lines(frame, screen, device, areas[3]);
        over_time(frame, screen, device, areas[4]);
    }
    let heading =
        format!("  {:>7} {:<9} {:>14} {:>14} PROGRAM", "PID", "STATE", "MEMORY", "SLEEP FREES");
    frame.render_widget(Line::styled(heading, bold(screen)), areas[5]);
    programs(frame, screen, areas[6]);
    frame.render_widget(Line::from(detail(screen)), areas[7]);
    frame.render_widget(Line::from(keys(screen)), areas[8]);
    popup(frame, screen);
}

fn wrapped(text: &str, width: u16) -> impl Iterator<Item = String> {
    textwrap::wrap(text, usize::from(width)).into_iter().map(Cow::into_owned)
}

fn title(screen: &Screen) -> String {
    let of = |state| screen.look.programs.iter().filter(|program| program.state == state).count();
    let states =
        [ProgramState::Awake, ProgramState::Asleep, ProgramState::Suspended, ProgramState::Waiting];
    let states = states.map(|state| format!("{} {state}", of(state))).join(", ");
    format!("lowtide top   {} programs: {states}", screen.look.programs.len())
}

fn bold(screen: &Screen) -> Style {
    let style = Style::new().add_modifier(Modifier::BOLD);
    if screen.has_colours { style } else { Style::new() }
}

fn style(screen: &Screen, band: Band) -> Style {
    let colour = match band {
        Band::Live => Color::Green,
        Band::Cached => Color::Yellow,
        Band::Context => Color::Blue,
        Band::Others => Color::Magenta,
        Band::Reserved => Color::DarkGray,
        Band::Unknown => Color::Red,
    };
    if screen.has_colours { Style::new().fg(colour) } else { Style::new() }
}

fn name(device: &DeviceLook) -> String {
    let id = device.id.as_ref().map_or_else(|| "not for CUDA".to_owned(), ToString::to_string);
    match &device.node {
        Some(node) => format!("node {node:.8} {id}"),
        None => format!("{id} {}", device.uuid),
    }
}

fn in_use(device: &DeviceLook) -> String {
    format!("{} of {} in use", device.total - device.free, device.total)
}

/// A device as one line with one bar.
fn bar<'a>(screen: &Screen, device: &DeviceLook) -> Line<'a> {
    let of = |cell: Option<Band>| match cell {
        Some(band) => Span::styled(sign(band), style(screen, band)),
        None => Span::raw(" "),
    };
    let id = device.id.as_ref().map_or_else(|| device.uuid.clone(), ToString::to_string);
    let node = device.node.as_ref().map_or_else(String::new, |node| format!("{node:.8} "));
    let mut line = vec![Span::raw(format!("{node}{id:<8.8} |"))];
    line.extend(cells(&device.bands, device.total, BAR).into_iter().map(of));
    line.push(Span::raw(format!("| {}", in_use(device))));
    Line::from(line)
}

/// The device that is shown over time: its numbers, and the legend with those of its bands.
fn device_lines(frame: &mut Frame<'_>, screen: &Screen, device: &DeviceLook, area: Rect) {
    let legend = |bands: &[Band]| {
        let one = |band: &Band| {
            let bytes = signed(device.bands.get(band).copied().unwrap_or_default());
            let text = format!(" {:<8} {bytes:>14} ", band.as_str());
            [Span::styled(sign(*band), style(screen, *band)), Span::raw(text)]
        };
        Line::from(bands.iter().flat_map(one).collect::<Vec<_>>())
    };
    let head = Line::from(format!("{}: {}", name(device), in_use(device)));
    let lines = vec![head, legend(&Band::ALL[..3]), legend(&Band::ALL[3..])];
    frame.render_widget(Paragraph::new(lines), area);
}

/// The memory of a device over time: a column for each look, the last one at the right.
fn over_time(frame: &mut Frame<'_>, screen: &Screen, device: &DeviceLook, area: Rect) {
    let Some(looks) = screen.history.get(&device.key()) else { return };
    let draw = |(number, bands): (usize, &BTreeMap<Band, i64>)| {
        let column = area.right() - 1 - u16::try_from(number).unwrap_or(u16::MAX);
        let cells = cells(bands, device.total, usize::from(area.height));
        for (row, band) in area.rows().rev().zip(cells) {
            let Some(band) = band else { continue };
            frame.buffer_mut().set_string(column, row.y, sign(band), style(screen, band));
        }
    };
    looks.iter().rev().take(usize::from(area.width)).enumerate().for_each(draw);
}

fn programs(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let (programs, place) = (screen.programs(), screen.place());
    let height = usize::from(area.height);
    let first = place.saturating_sub(height / 2).min(programs.len().saturating_sub(height));
    for (row, (number, program)) in area.rows().zip(programs.iter().enumerate().skip(first)) {
        let is_chosen = number == place;
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        let style = if is_chosen && screen.has_colours { reversed } else { Style::new() };
        frame.render_widget(Line::styled(program_line(program, is_chosen), style), row);
    }
    if programs.is_empty() {
        let why = if screen.filter.is_empty() {
            "no program uses a device"
        } else {
            "no program fits the filter"
        };
        frame.render_widget(Line::from(format!("  {why}")), area);
    }
}

fn program_line(program: &ProgramLook, is_chosen: bool) -> String {
    let ProgramLook { pid, state, command, .. } = program;
    let node = program.node.as_ref().map_or_else(String::new, |node| format!("{node:.8} "));
    let size = |bytes: Option<lowtide_types::Bytes>| {
        bytes.map_or_else(|| "-".to_owned(), |it| it.to_string())
    };
    let (held, frees) = (size(program.held), size(program.frees));
    let mark = if is_chosen { '>' } else { ' ' };
    format!("{mark} {pid:>7} {:<9} {held:>14} {frees:>14} {node}{command}", state.as_str())
}

/// What is known of the chosen program beside its row.
fn detail(screen: &Screen) -> String {
    let programs = screen.programs();
    let Some(program) = programs.get(screen.place()) else { return String::new() };
    let obstacle = program.obstacle.as_ref().map(|why| format!("cannot sleep: {why}"));
    let facts = program.turn.iter().cloned().chain(obstacle).collect::<Vec<_>>().join("; ");
    if facts.is_empty() { String::new() } else { format!("  {}: {facts}", program.pid) }
}

fn keys(screen: &Screen) -> String {
    if screen.is_typing {
        return format!("filter: {}_   Enter keeps it, Esc clears it", screen.filter);
    }
    let acts = if screen.is_read_only { "" } else { "s sleep  w wake  x suspend  y why  " };
    let filter = if screen.filter.is_empty() { "" } else { &screen.filter };
    format!("q quit  {acts}o sort: {}  / filter {filter} Tab device", screen.sort.name())
}

/// The question before an act, or what the last one said.
fn popup(frame: &mut Frame<'_>, screen: &Screen) {
    let text = match (&screen.asked, &screen.message) {
        (Some(act), _) => format!(
            "lowtide {} {}\n{}\n\ny does it, any other key does not",
            act.verb, act.pid, act.command
        ),
        (None, Some(message)) => message.clone(),
        (None, None) => return,
    };
    let area = frame.area();
    let width = area.width.saturating_sub(4);
    let inner = usize::from(width.saturating_sub(2)).max(1);
    let lines: usize = text.lines().map(|line| line.chars().count() / inner + 1).sum();
    let height = u16::try_from(lines + 2).unwrap_or(u16::MAX).min(area.height);
    let place = Rect {
        x: area.width.saturating_sub(width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    frame.render_widget(
        Paragraph::new(text).wrap(Wrap { trim: false }).block(Block::bordered()),
        place,
    );
}
