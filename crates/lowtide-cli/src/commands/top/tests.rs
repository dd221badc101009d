use std::collections::BTreeMap;

use lowtide_device::{Bytes, DeviceId};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};

use super::screen::Verb;
use super::*;
use crate::commands::look::{Band, DeviceLook, ProgramLook, ProgramState};

fn device(number: u32, mib: [i64; 6]) -> DeviceLook {
    let bands: BTreeMap<Band, i64> = Band::ALL.into_iter().zip(mib.map(|mib| mib << 20)).collect();
    let in_use = Bytes(bands.values().sum::<i64>().cast_unsigned());
    let total = Bytes::mib(1000);
    let (id, uuid) = (Some(DeviceId::Cuda(number)), format!("GPU-{number}"));
    DeviceLook { node: None, id, uuid, total, free: total - in_use, bands }
}

fn program(pid: u32, state: ProgramState, held: u64, command: &str) -> ProgramLook {
    let has_agent = state != ProgramState::NoAgent && state != ProgramState::Suspended;
    ProgramLook {
        node: None,
        pid,
        start_ticks: Some(u64::from(pid) * 10),
        command: command.to_owned(),
        state,
        held: Some(Bytes::mib(held)),
        frees: has_agent.then_some(Bytes::mib(held / 2)),
        obstacle: None,
        turn: None,
    }
}

fn look() -> Look {
    let mut waiting = program(9, ProgramState::Waiting, 0, "python queue.py");
    waiting.turn = Some("wake waits for 3 s: process 7 works on".to_owned());
    let programs = vec![
        program(7, ProgramState::Awake, 400, "python serve.py"),
        program(8, ProgramState::Asleep, 100, "python other.py"),
        waiting,
        program(10, ProgramState::NoAgent, 300, "./render"),
        program(11, ProgramState::Suspended, 0, "python away.py"),
    ];
    Look { devices: vec![device(0, [300, 100, 100, 300, 50, 50])], programs, problems: Vec::new() }
}

fn screen(is_read_only: bool) -> Screen {
    let mut screen = Screen::new(is_read_only, false);
    screen.show(look());
    screen
}

fn press(screen: &mut Screen, keys: &str) -> Outcome {
    let mut last = Outcome::Stay;
    for letter in keys.chars() {
        let code = match letter {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '↓' => KeyCode::Down,
            '↑' => KeyCode::Up,
            '⎋' => KeyCode::Esc,
            letter => KeyCode::Char(letter),
        };
        last = screen.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    last
}

#[test]
fn eighty_columns_without_colours_show_everything() {
    let mut screen = screen(false);
    let mut later = look();
    later.devices[0] = device(0, [0, 0, 200, 300, 50, 50]);
    screen.show(later);
    let text = picture(&screen, 80, 24).unwrap();
    let expected = include_str!("picture.txt");
    assert_eq!(text, expected, "\n{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn what_could_not_be_read_is_said_whole_in_eighty_columns() {
    let problem = "memory per process cannot be read: the NVML library is not installed; install the NVIDIA driver, or \
                   set LOWTIDE_NVML_LIBRARY to the library's path";
    let mut screen = Screen::new(true, false);
    screen.show(Look { problems: vec![problem.to_owned()], ..Look::default() });
    let text = picture(&screen, 80, 24).unwrap();
    assert!(text.replace('\n', " ").contains(problem), "{text}");
}

#[test]
fn nothing_panics_in_any_room_with_two_hundred_programs_and_eight_devices() {
    let mut many = look();
    many.programs = (0..200).map(|pid| program(pid, ProgramState::Awake, 1, "x")).collect();
    many.devices = (0..8).map(|number| device(number, [1, 2, 3, 4, 5, -6])).collect();
    many.problems = vec!["a GPU could not be read".to_owned()];
    for looks in [Look::default(), many] {
        for (width, rows) in [(1, 1), (3, 2), (20, 5), (80, 24), (80, 12), (300, 100)] {
            let mut screen = Screen::new(false, true);
            (0..5).for_each(|_| screen.show(looks.clone()));
            press(&mut screen, "↓↓↓\t");
            assert!(!picture(&screen, width, rows).unwrap().is_empty());
            press(&mut screen, "s");
            assert!(!picture(&screen, width, rows).unwrap().is_empty());
        }
    }
}

#[test]
fn colours_are_there_only_where_they_are_wanted() {
    let drawn = |has_colours| {
        let mut screen = Screen::new(false, has_colours);
        screen.show(look());
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw::draw(frame, &screen)).unwrap();
        let cells = terminal.backend().buffer().content().to_vec();
        cells.iter().any(|cell| cell.fg != Color::Reset || cell.modifier != Modifier::empty())
    };
    assert!(drawn(true) && !drawn(false));
}

#[test]
fn an_act_names_its_process_and_is_done_after_yes_alone() {
    let mut screen = screen(false);
    assert_eq!(press(&mut screen, "s"), Outcome::Stay);
    let text = picture(&screen, 80, 24).unwrap();
    assert!(text.contains("lowtide sleep 7") && text.contains("python serve.py"), "{text}");
    assert_eq!(press(&mut screen, "n"), Outcome::Stay);
    assert!(screen.asked.is_none() && screen.message.is_none());
    assert_eq!(press(&mut screen, "sq"), Outcome::Stay, "a key that is not yes is no");
    for (keys, verb, pid) in [
        ("sy", Verb::Sleep, 7),
        ("xy", Verb::Suspend, 7),
        ("↓xy", Verb::Suspend, 10),
        ("↓wy", Verb::Wake, 8),
        ("↓↓wy", Verb::Resume, 11),
    ] {
        match press(&mut screen, keys) {
            Outcome::Do(act) => {
                assert_eq!((act.verb, act.pid, act.start_ticks), (verb, pid, u64::from(pid) * 10));
            }
            outcome => panic!("{keys}: {outcome:?}"),
        }
    }
    // A process without an agent, and one that cannot be seen.
    screen.look.programs[3].start_ticks = None;
    press(&mut screen, "↑↑↑↑↑↓s");
    assert!(
        screen.asked.is_none() && screen.message.as_deref().unwrap().contains("cannot be seen")
    );
}

#[test]
fn equal_pids_and_uuids_of_two_nodes_are_two_programs_and_two_devices() {
    let mut both = look();
    let of_node = |name: &str| {
        let mut look = look();
        look.devices[0].node = Some(name.to_owned());
        for program in &mut look.programs {
            program.node = Some(name.to_owned());
        }
        look
    };
    let (first, second) = (of_node("aaaaaaaa11"), of_node("bbbbbbbb22"));
    both.devices = [first.devices, second.devices].concat();
    both.programs = [first.programs, second.programs].concat();
    both.devices[1] = DeviceLook { node: both.devices[1].node.clone(), ..device(0, [9; 6]) };
    let mut screen = Screen::new(true, false);
    screen.show(both);
    // The first rows are equal but for their node.
    for node in ["aaaaaaaa", "bbbbbbbb", "aaaaaaaa"] {
        let text = picture(&screen, 100, 30).unwrap();
        let chosen = text.lines().find(|line| line.starts_with('>')).unwrap().to_owned();
        assert!(chosen.contains(node), "{text}");
        press(&mut screen, if node == "aaaaaaaa" { "↓" } else { "↑" });
    }
    let text = picture(&screen, 80, 30).unwrap();
    assert!(text.contains("node aaaaaaaa cuda:0: 900.0 MiB") && text.contains("bbbbbbbb cuda:0"));
    press(&mut screen, "\t");
    assert!(picture(&screen, 80, 30).unwrap().contains("node bbbbbbbb cuda:0: 54.0 MiB"));
    press(&mut screen, "/bbbbbbbb\n");
    assert_eq!(screen.programs().len(), 5);
    assert_eq!(press(&mut screen, "s"), Outcome::Stay);
    assert!(screen.asked.is_none() && screen.message.is_some());
}

#[test]
fn read_only_changes_nothing() {
    let mut screen = screen(true);
    for key in ["s", "w", "x"] {
        assert_eq!(press(&mut screen, &format!("{key}y")), Outcome::Stay);
        assert!(screen.asked.is_none(), "{key}");
    }
    assert!(!picture(&screen, 80, 24).unwrap().contains("s sleep"));
    assert_eq!(press(&mut screen, "q"), Outcome::Quit);
}

#[test]
fn programs_are_sorted_and_filtered_and_the_chosen_one_stays_chosen() {
    let mut screen = screen(false);
    let order = |screen: &Screen| screen.programs().iter().map(|it| it.pid).collect::<Vec<_>>();
    assert_eq!(order(&screen), [7, 10, 8, 9, 11], "by memory");
    press(&mut screen, "↓");
    press(&mut screen, "o");
    assert_eq!(order(&screen), [7, 8, 9, 10, 11], "by what a sleep frees");
    assert_eq!(screen.place(), 3, "still 10");
    press(&mut screen, "oo");
    assert_eq!((order(&screen), screen.sort.name()), (vec![7, 8, 9, 10, 11], "pid"));
    press(&mut screen, "/PYthon q\n");
    assert_eq!(order(&screen), [9]);
    press(&mut screen, "⎋/asleep");
    assert_eq!(order(&screen), [8]);
    press(&mut screen, "⎋");
    assert_eq!(order(&screen).len(), 5);
}

#[test]
fn another_process_of_the_same_number_is_left_alone() {
    let pid = std::process::id();
    let own = Target::of(pid).unwrap();
    let act = |start_ticks| Act { verb: Verb::Sleep, pid, start_ticks, command: String::new() };
    let error = said_by(&act(own.start_ticks + 1)).unwrap_err();
    assert!(error.to_string().contains("nothing was done"), "{error}");
}
