//! What `top` shows and what keys do to it. Nothing here asks the machine or draws.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::commands::look::{Band, DeviceLook, Look, ProgramLook, ProgramState};

/// The most looks that are kept: the columns of a very wide terminal.
const LOOKS_MOST: usize = 512;
/// The longest filter.
const FILTER_MOST: usize = 64;

/// The order of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Memory,
    Frees,
    State,
    Pid,
}

impl Sort {
    fn next(self) -> Sort {
        match self {
            Sort::Memory => Sort::Frees,
            Sort::Frees => Sort::State,
            Sort::State => Sort::Pid,
            Sort::Pid => Sort::Memory,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Memory => "memory",
            Sort::Frees => "frees",
            Sort::State => "state",
            Sort::Pid => "pid",
        }
    }
}

/// What a person may do to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Sleep,
    Wake,
    Suspend,
    Resume,
    Why,
}

impl Verb {
    pub(super) fn command(self) -> &'static str {
        match self {
            Verb::Sleep => "sleep",
            Verb::Wake => "wake",
            Verb::Suspend => "suspend",
            Verb::Resume => "resume",
            Verb::Why => "why",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.command())
    }
}

/// An act on one process, which is another one if it started at another time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Act {
    pub(super) verb: Verb,
    pub(super) pid: u32,
    pub(super) start_ticks: u64,
    pub(super) command: String,
}

/// What a key leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Stay,
    Quit,
    Do(Act),
}

/// What is shown.
pub(super) struct Screen {
    pub(super) look: Look,
    /// The bands of each device, by its key, the oldest first.
    pub(super) history: HashMap<String, VecDeque<BTreeMap<Band, i64>>>,
    pub(super) sort: Sort,
    pub(super) filter: String,
    /// Whether keys are letters of the filter.
    pub(super) is_typing: bool,
    /// What a person is asked about.
    pub(super) asked: Option<Act>,
    /// What the last act said.
    pub(super) message: Option<String>,
    pub(super) is_read_only: bool,
    pub(super) has_colours: bool,
    /// The node and the PID of a program.
    selected: Option<(Option<String>, u32)>,
    device: usize,
}

impl Screen {
    pub(super) fn new(is_read_only: bool, has_colours: bool) -> Screen {
        Screen {
            look: Look::default(),
            history: HashMap::new(),
            sort: Sort::Memory,
            filter: String::new(),
            is_typing: false,
            asked: None,
            message: None,
            is_read_only,
            has_colours,
            selected: None,
            device: 0,
        }
    }

    /// Shows another look.
    pub(super) fn show(&mut self, look: Look) {
        for device in &look.devices {
            let looks = self.history.entry(device.key()).or_default();
            looks.push_back(device.bands.clone());
            if looks.len() > LOOKS_MOST {
                looks.pop_front();
            }
        }
        self.look = look;
    }

    /// Shows what an act said.
    pub(super) fn say(&mut self, message: String) {
        self.message = Some(message);
    }

    /// Returns the device whose memory is shown over time.
    pub(super) fn device(&self) -> Option<&DeviceLook> {
        self.look.devices.get(self.device % self.look.devices.len().max(1))
    }

    /// Returns the programs that are shown, in their order.
    pub(super) fn programs(&self) -> Vec<&ProgramLook> {
        let filter = self.filter.to_lowercase();
        let is_shown = |program: &&ProgramLook| {
            let node = program.node.as_deref().unwrap_or_default();
            let text = format!("{} {} {node} {}", program.pid, program.state, program.command);
            text.to_lowercase().contains(&filter)
        };
        let mut programs: Vec<&ProgramLook> = self.look.programs.iter().filter(is_shown).collect();
        programs.sort_by_key(|program| match self.sort {
            Sort::Memory => std::cmp::Reverse(program.held.map_or(0, |held| held.0)),
            Sort::Frees => std::cmp::Reverse(program.frees.map_or(0, |frees| frees.0)),
            Sort::State => std::cmp::Reverse(u64::MAX - program.state as u64),
            Sort::Pid => std::cmp::Reverse(u64::MAX - u64::from(program.pid)),
        });
        programs
    }

    /// Returns the place of the chosen program among those that are shown: the first, if it is not there any more.
    pub(super) fn place(&self) -> usize {
        let programs = self.programs();
        let is_chosen = |program: &&ProgramLook| Some(key(program)) == self.selected;
        programs.iter().position(is_chosen).unwrap_or(0)
    }

    /// Takes a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Outcome {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Outcome::Quit } else { Outcome::Stay };
        }
        if let Some(act) = self.asked.take() {
            // Everything else than yes is no.
            return match key.code {
                KeyCode::Char('y' | 'Y') => {
                    self.say(format!("lowtide {} {} …", act.verb, act.pid));
                    Outcome::Do(act)
                }
                _ => Outcome::Stay,
            };
        }
        if self.is_typing {
            match key.code {
                KeyCode::Char(letter) if self.filter.len() < FILTER_MOST => {
                    self.filter.push(letter);
                }
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => {
                    self.filter.clear();
                    self.is_typing = false;
                }
                _ => {}
            }
            return Outcome::Stay;
        }
        let had_message = self.message.take().is_some();
        match key.code {
            KeyCode::Char('q') => return Outcome::Quit,
            KeyCode::Esc if !had_message => self.filter.clear(),
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::PageUp => self.choose(-10),
            KeyCode::PageDown => self.choose(10),
            KeyCode::Char('o') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Tab => self.device = self.device.wrapping_add(1),
            KeyCode::Char('s') => self.ask(Verb::Sleep),
            KeyCode::Char('w') => self.ask(Verb::Wake),
            KeyCode::Char('x') => self.ask(Verb::Suspend),
            KeyCode::Char('y') => self.ask(Verb::Why),
            _ => {}
        }
        Outcome::Stay
    }

    fn choose(&mut self, by: isize) {
        let (place, programs) = (self.place(), self.programs());
        let last = programs.len().saturating_sub(1);
        let next =
            programs.get(place.saturating_add_signed(by).min(last)).map(|program| key(program));
        self.selected = next;
    }

    /// Asks whether the chosen program is meant, which has to be that of the same PID and start later.
    fn ask(&mut self, verb: Verb) {
        if self.is_read_only {
            return self.say("this view changes nothing (--read-only, --ray)".to_owned());
        }
        let Some(program) = self.programs().get(self.place()).map(|program| (*program).clone())
        else {
            return;
        };
        let ProgramLook { pid, state, frees, command, .. } = program;
        let Some(start_ticks) = program.start_ticks else {
            return self.say(format!(
                "process {pid} cannot be seen from here, so nothing can be done to it"
            ));
        };
        let is_suspended = state == ProgramState::Suspended;
        let verb = match verb {
            Verb::Wake if is_suspended && frees.is_none() => Verb::Resume,
            Verb::Sleep | Verb::Wake if frees.is_none() => {
                return self.say(format!(
                    "process {pid} has no agent; `lowtide run` starts programs that sleep"
                ));
            }
            verb => verb,
        };
        self.selected = Some((None, pid));
        self.asked = Some(Act { verb, pid, start_ticks, command });
    }
}

fn key(program: &ProgramLook) -> (Option<String>, u32) {
    (program.node.clone(), program.pid)
}
