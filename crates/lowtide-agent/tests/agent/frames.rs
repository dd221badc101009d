//! What anybody may write to the socket, or answer in an agent's place.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use lowtide_proto::{Answer, Ask, LINE_MOST, Request, ShareAnswer, ShareAsk};
use lowtide_testing::Dice;
use lowtide_types::Bytes;

use crate::program::{Program, Route, World};
use crate::sharing::signal;
use crate::{MIB, slept};

const SEED: u64 = 15;
const FRAMES: usize = 400;

/// Returns a line that is wrong in some way, or right.
fn frame(dice: &mut Dice) -> Vec<u8> {
    let asks = [Ask::Status, Ask::Wake, Ask::Release { to: Some(Bytes(u64::MAX)) }];
    let mut line = Request::new(dice.pick(&asks)).to_line().into_bytes();
    match dice.roll(6) {
        0 => line = (0..dice.roll(200)).map(|_| dice.roll(256) as u8).collect(),
        1 => line.truncate(dice.index(line.len())),
        2 => line = line.repeat(1 + dice.index(4)),
        3 => line = vec![dice.roll(256) as u8; LINE_MOST - 2 + dice.index(5)],
        4 => line = b"[".repeat(dice.index(LINE_MOST)),
        _ => {
            for _ in 0..=dice.roll(3) {
                let at = dice.index(line.len());
                line[at] = dice.roll(256) as u8;
            }
        }
    }
    line
}

#[test]
fn random_frames_are_answered_and_change_nothing() {
    println!("seed {SEED}");
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304; write 0 5");
    let mut dice = Dice::new(SEED);
    for number in 0..FRAMES {
        let frame = frame(&mut dice);
        let answer = program.say(&frame);
        if !answer.is_empty() {
            let answer = serde_json::from_str::<Answer>(&answer);
            assert!(answer.is_ok(), "frame {number}: {:?}", String::from_utf8_lossy(&frame));
        }
    }
    assert!(!program.status().is_asleep);
    slept(&program);
    program.does("check 0");
}

/// The folder keeps others out; where somebody has opened it, the kernel's answer about the client does.
#[test]
fn another_user_gets_no_answer() {
    if fs::metadata("/proc/self").expect("a process").uid() != 0 {
        return eprintln!("skipped: only root can start a process of another user");
    }
    let world = World::new();
    let mut program = world.start(Route::Dlsym);
    let socket = program.socket();
    program.does("alloc 0 4194304");
    let handle = program.text("handle 0 0");
    let bytes = (60..64).rev().map(|byte| &handle[2 * byte..2 * byte + 2]);
    let place = format!("@lowtide-{}", bytes.collect::<String>());
    for folder in socket.ancestors().skip(1).take(3) {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("ours");
    }
    fs::set_permissions(&socket, Permissions::from_mode(0o777)).expect("ours");
    let script = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1].replace('@', '\\0')); \
                  print('in', flush=True); s.sendall(sys.argv[2].encode()); print(len(s.recv(9)))";
    let asks = |user: u32, socket: &str| {
        let mut python = Command::new("/usr/bin/env");
        python.args(["python3", "-c", script]).arg(socket).arg(Request::new(Ask::Status).to_line());
        let output = python.uid(user).current_dir("/").output().expect("it starts");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    for socket in [socket.to_str().expect("a path of letters"), &place] {
        assert_eq!(asks(0, socket), "in\n9");
        let told = asks(65534, socket);
        assert!(["in", "in\n0"].contains(&&*told), "{told}");
    }
}

#[test]
fn a_client_without_the_secret_opens_nothing() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304; write 0 5");
    program.text("handle 0 0");
    let open = |allocation| ShareAsk::Open { token: [0; 2], allocation, most: 200, family: None };
    let lines = (0..4).map(open);
    let lines = lines.map(|ask| ask.to_line()).chain([
        ShareAsk::More { most: usize::MAX }.to_line(),
        ShareAsk::Close { allocation: 1 }.to_line(),
        "[[[[\n".to_owned(),
    ]);
    for line in lines {
        let mut socket = UnixStream::connect(program.socket()).expect("it listens");
        let mut answers = BufReader::new(socket.try_clone().expect("a socket")).lines();
        socket.write_all(Request::new(Ask::Share).to_line().as_bytes()).expect("it reads");
        let ready = answers.next().expect("an answer").expect("a line");
        assert_eq!(format!("{ready}\n"), ShareAnswer::Ready.to_line());
        socket.write_all(line.as_bytes()).expect("it reads");
        if line.contains("token") {
            let answer = answers.next().expect("an answer").expect("a line");
            assert!(answer.contains("refused"), "{line}: {answer}");
        }
    }
    slept(&program);
    program.does("check 0");
}

/// Somebody of this user answers in the place of the agent whose memory is opened.
#[test]
fn a_false_answer_about_memory_is_an_error_and_maps_nothing() {
    let chunks = |bytes: u64, chunks: &[u64], left: u64| {
        let chunks = chunks.iter().copied().map(Bytes).collect();
        let (bytes, left) = (Bytes(bytes), Bytes(left));
        ShareAnswer::Chunks { bytes, chunks, left, is_kin: false }.to_line()
    };
    let answers = [
        String::new(),
        "{}\n".to_owned(),
        "x".repeat(100_000),
        ShareAnswer::Ready.to_line(),
        chunks(4 * MIB, &[u64::MAX, 2], 0),
        chunks(4 * MIB, &[2 * MIB], u64::MAX),
        chunks(4 * MIB, &[4 * MIB], 0),
        chunks(4 * MIB, &[], 4 * MIB).repeat(2),
        chunks(0, &[], 0),
        chunks(u64::MAX, &[2 * MIB], 0),
    ];
    let world = World::new();
    let mut exporter = world.start(Route::Dlsym);
    let mut importer = world.start(Route::Dlsym);
    exporter.does("alloc 0 4194304");
    importer.does("alloc 1 4194304; write 1 9");
    // Without its agent's place, so that the folder is asked, where the agent does not listen again: it is stopped.
    let handle = exporter.text("handle 0 0");
    let handle = format!("{}00000000", &handle[..120]);
    signal("-STOP", &exporter.pid());
    let live = importer.text("live");
    fs::remove_file(exporter.socket()).expect("it was there");
    let listener = UnixListener::bind(exporter.socket()).expect("a socket");
    let current = Arc::new(Mutex::new(String::new()));
    let said = Arc::clone(&current);
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(client.try_clone().expect("a socket")).lines();
            let _share = lines.next();
            let _sent = client.write_all(ShareAnswer::Ready.to_line().as_bytes());
            let _open = lines.next();
            let _sent = client.write_all(said.lock().expect("no panic").as_bytes());
        }
    });
    for answer in answers {
        current.lock().expect("no panic").clone_from(&answer);
        // The first may find the connection of the answer before, which has ended.
        for _ in 0..2 {
            let code = importer.text(&format!("open 0 4194304 1 {handle}"));
            assert!(code.starts_with("error "), "{code}: {answer:.200}");
        }
        importer.does("check 1");
        assert_eq!(importer.text("live"), live, "{answer:.200}");
    }
    assert!(importer.status().obstacles.is_empty(), "{:?}", importer.status());
    signal("-CONT", &exporter.pid());
}
