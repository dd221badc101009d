//! `run`, `status`, `sleep`, `wake` and `release`, with the agent in a C program on the driver double.

#[path = "../../../lowtide-agent/tests/agent/program.rs"]
#[allow(dead_code, reason = "the agent's own tests use the rest")]
pub(crate) mod program;

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::PROGRAM;
use lowtide_testing::double::Double;
use program::{LIMIT, Program, Route, World, agent, client, helper};

/// Prepares a command of the `lowtide` program.
pub(crate) fn lowtide(world: &World, arguments: &[&str]) -> Command {
    let mut command = world.command(env!("CARGO_BIN_EXE_lowtide").as_ref());
    command.args(arguments).env("LOWTIDE_AGENT_LIBRARY", agent());
    command
}

/// Starts a program by `lowtide run`.
pub(crate) fn run(world: &World, options: &[&str]) -> Program {
    let mut command = lowtide(world, &["run"]);
    world.spawn(command.args(options).arg("--").arg(client(Route::Dlsym)))
}

#[test]
fn the_command_line_starts_it_shows_it_and_puts_it_to_sleep() {
    let world = World::new();
    let mut program = run(&world, &[]);
    program.does("start; alloc 0 8388608; write 0 5");
    let said = |arguments: &[&str]| {
        let output =
            lowtide(&world, arguments).env("COLUMNS", "200").output().expect("lowtide runs");
        let (out, err) = (output.stdout, output.stderr);
        let text = String::from_utf8_lossy(&[out, err].concat()).into_owned();
        (output.status.code(), text)
    };
    let pid = program.pid();
    let (code, text) = said(&["status", &pid]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("awake") && text.contains("1 allocations that can sleep, 8.0 MiB"),
        "{text}"
    );
    let (code, text) = said(&["sleep", &pid]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("released"), "{text}");
    assert!(said(&["status"]).1.contains("asleep"));
    let (code, text) = said(&["sleep", &pid]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("asleep already"), "{text}");
    let (code, text) = said(&["release", &pid, "--to", "500MiB"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("at most 500.0 MiB"), "{text}");
    let (code, text) = said(&["status", &pid]);
    assert!(code == Some(0) && text.contains("ledger") && text.contains("unknown"), "{text}");
    let (code, text) = said(&["wake", &pid]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("8.0 MiB came back"), "{text}");
    program.does("check 0");
    let (code, text) = said(&["sleep", &std::process::id().to_string()]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("lowtide run"), "{text}");
}

#[test]
fn what_a_person_types_beside_a_starting_program_is_done_with_a_warning() {
    let world = World::new();
    let mut program = run(&world, &[]);
    program.does("start; alloc 0 8388608; write 0 5");
    let mut neighbour = run(&world, &[]);
    neighbour.does("start; alloc 0 4194304");
    for verb in ["sleep", "wake", "release"] {
        let mut command = lowtide(&world, &[verb, &program.pid()]);
        let done = command.env("LOWTIDE_GIVE_WAY", "1h").output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(0), "{verb}: {said}");
        let warning = format!("lowtide: client (pid {}) started ", neighbour.pid());
        assert!(said.starts_with(&warning), "{verb}: {said}");
        assert_eq!(said.matches("lowtide:").count(), 1, "{verb}: {said}");
    }
    let quiet = lowtide(&world, &["sleep", &program.pid()]).env("LOWTIDE_GIVE_WAY", "0").output();
    assert_eq!(quiet.unwrap().stderr, b"");
    program.does("check 0");
}

#[test]
fn run_with_idle_puts_it_to_sleep_by_itself() {
    let world = World::new();
    let mut program =
        run(&world, &["--idle", "50ms", "--wake-timeout", "7s", "--despite", "ucx,mps"]);
    program.does("start; alloc 0 4194304; write 0 5");
    let began = Instant::now();
    while !program.status().is_asleep {
        assert!(began.elapsed() < LIMIT, "it does not fall asleep");
        program.does("poll");
    }
    program.does("check 0");
    assert!((program.status().wake_timeout_s - 7.0).abs() < 1e-9);
}

#[test]
fn status_says_when_idleness_suspends_it_and_what_failed_last() {
    let world = World::new();
    let mut command = lowtide(&world, &["run", "--idle", "1h", "--to", "suspend", "--"]);
    command.env("LOWTIDE_HELPER_PROGRAM", helper());
    let mut program = world.spawn(command.arg(client(Route::Dlsym)));
    program.does("start; alloc 0 4194304; write 0 5; capture 0");
    let status = |program: &Program| {
        let mut command = lowtide(&world, &["status", &program.pid()]);
        let output = command.env("COLUMNS", "400").output().expect("lowtide runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(!status(&program).contains("failed last"), "{}", status(&program));
    assert_eq!(
        lowtide(&world, &["sleep", &program.pid()]).output().unwrap().status.code(),
        Some(1)
    );
    let began = Instant::now();
    while program.status().due_s.is_none() {
        assert!(began.elapsed() < LIMIT, "{}", status(&program));
    }
    let text = status(&program);
    assert!(text.contains("is suspended") && text.contains("; unused for"), "{text}");
    assert!(text.contains("failed last") && text.contains("s ago: sleep: busy"), "{text}");
    program.does("end-capture; check 0");
}

#[test]
fn programs_that_share_take_turns_and_status_shows_who_waits() {
    let world = World::new();
    let settings = format!("idle_ms=3000,locks={}", world.folder().display());
    let share = |class: &str| {
        let mut command = lowtide(&world, &["run", "--share", "--priority", class, "--wait", "5m"]);
        command.env("LOWTIDE_HELPER_PROGRAM", helper()).env("LOWTIDE_HELPER", &settings);
        command.env("LOWTIDE_DOUBLE", "total=100MiB,reserved=2MiB,context=1MiB");
        let mut program = world.spawn(command.arg("--").arg(client(Route::Dlsym)));
        program.does("start");
        program
    };
    let (mut first, mut second) = (share("batch"), share("interactive"));
    first.does("alloc 0 54525952; write 0 5");
    // The first one gives way, and then waits for one that is stopped.
    second.does("alloc 0 52428800; write 0 6");
    let kill = |signal: &str| Command::new("kill").args([signal, &second.pid()]).status();
    assert!(kill("-STOP").expect("kill").success());
    first.tell("check 0");
    let status = |more: &[&str]| {
        let mut command = lowtide(&world, &[&["status"], more].concat());
        command.env("LOWTIDE_HELPER_PROGRAM", helper()).env("COLUMNS", "400");
        String::from_utf8_lossy(&command.output().expect("lowtide runs").stdout).into_owned()
    };
    let has = format!("process {}", second.pid());
    let began = Instant::now();
    let text = loop {
        let text = status(&[]);
        if text.contains("waits 1.") && text.contains("stopped") {
            break text;
        }
        assert!(began.elapsed() < LIMIT, "{text}");
    };
    let sleeps = "when another program needs its room";
    for part in ["take turns", "98.0 MiB", "51.0 MiB", "wake", "interactive", &has, sleeps] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("when `lowtide sleep` says so"), "{text}");
    let lines = status(&["--json"]);
    let queue = lines.lines().find(|line| line.contains("\"queue\"")).expect("a line");
    let queue: serde_json::Value = serde_json::from_str(queue).expect("JSON");
    assert_eq!(queue["queue"]["waiters"][0]["pid"].to_string(), first.pid());
    assert_eq!(queue["queue"]["waiters"][0]["limit_s"], 300.0);
    assert!(kill("-CONT").expect("kill").success());
    assert_eq!(first.answer(), "ok");
    second.does("check 0");
    first.does("check 0");
    let text = lowtide(&world, &["metrics"]).output().expect("lowtide runs").stdout;
    let text = String::from_utf8_lossy(&text);
    for act in ["give_way", "wait"] {
        let count = format!("lowtide_{act}_duration_seconds_count ");
        let counted = text.lines().find_map(|line| line.strip_prefix(&count)?.parse::<u64>().ok());
        assert!(counted > Some(0), "{act}: {text}");
    }
}

#[test]
fn processes_of_one_run_are_one_program_unless_they_are_apart() {
    let world = World::new();
    let settings = format!("idle_ms=3000,locks={}", world.folder().display());
    let printed = |apart: &[&str], script: &str| {
        let mut command = lowtide(&world, &[&["run", "--share"], apart].concat());
        command.env("LOWTIDE_HELPER_PROGRAM", helper()).env("LOWTIDE_HELPER", &settings);
        let done = command.args(["--", "sh", "-c", script]).output().expect("lowtide runs");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let print = "echo $$; echo ${LOWTIDE_FAMILY:-none}; sh -c 'echo ${LOWTIDE_FAMILY:-none}'";
    let text = printed(&[], print);
    let [pid, first, child] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert!(first.starts_with(&format!("{pid}-")) && first == child, "{text}");
    assert!(printed(&["--apart"], print).ends_with("\nnone\nnone\n"));
    // Two processes that one run started, as `status` shows them.
    let script = "\"$0\" dlsym < \"$1\" > \"$1.out\" & exec \"$0\" dlsym";
    let (input, client) = (world.folder().join("input"), client(Route::Dlsym));
    assert!(Command::new("mkfifo").arg(&input).status().expect("mkfifo").success());
    let mut command = lowtide(&world, &["run", "--share", "--", "sh", "-c", script]);
    command.env("LOWTIDE_HELPER_PROGRAM", helper()).env("LOWTIDE_HELPER", &settings);
    let mut program = world.spawn(command.arg(client).arg(&input));
    let mut child = File::options().write(true).open(&input).expect("its input");
    writeln!(child, "start").expect("it reads");
    program.does("start; alloc 0 4194304");
    let began = Instant::now();
    let kin = format!("with all of run {}", program.pid());
    loop {
        let mut command = lowtide(&world, &["status"]);
        command.env("LOWTIDE_HELPER_PROGRAM", helper()).env("COLUMNS", "400");
        let text = command.output().expect("lowtide runs").stdout;
        let text = String::from_utf8_lossy(&text);
        if text.matches(&kin).count() == 2 {
            break;
        }
        assert!(began.elapsed() < LIMIT, "{text}");
    }
}

#[test]
fn a_process_that_is_not_there_is_said_to_be_so() {
    let world = World::new();
    for verb in ["status", "sleep", "wake", "release"] {
        // No process has this number: it is more than the kernel's most.
        let done = lowtide(&world, &[verb, "4194305"]).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(said.contains("there is no process 4194305"), "{verb}: {said}");
        assert_eq!(done.status.code(), Some(3), "{verb}");
    }
}

#[test]
fn a_process_without_an_agent_is_said_to_have_none() {
    let world = World::new();
    for verb in ["status", "sleep", "wake", "release"] {
        let done = lowtide(&world, &[verb, "1"]).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            said.starts_with("lowtide: process 1 has no agent, or has not used CUDA yet"),
            "{said}"
        );
        assert!(said.contains("lowtide run") && !said.contains("os error"), "{verb}: {said}");
        assert_eq!(done.status.code(), Some(3), "{verb}");
    }
}

#[test]
fn a_negative_size_is_no_option() {
    let world = World::new();
    let done = lowtide(&world, &["release", "1", "--to", "-5"]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("\"-5\" is not a size"), "{said}");
    assert_eq!(done.status.code(), Some(2));
}

#[test]
fn a_word_is_not_the_number_of_a_process() {
    let world = World::new();
    for verb in ["status", "sleep", "wake", "release", "suspend", "resume"] {
        let done = lowtide(&world, &[verb, "python"]).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(said.contains("\"python\" is not the number of a process"), "{verb}: {said}");
        assert_eq!(done.status.code(), Some(2), "{verb}");
    }
}

#[test]
fn run_refuses_words_that_it_does_not_know() {
    let world = World::new();
    for (option, word, allowed) in [
        ("--despite", "everything", "gdrcopy"),
        ("--wake-timeout", "soon", "30s"),
        ("--wait", "soon", "30s"),
        ("--priority", "high", "interactive"),
        ("--memory", "101%", "30%"),
        ("--reserve", "much", "size"),
        ("--idle", "soon", "is not a time"),
        ("--adopt", "everything", "autorag"),
        ("--adopt", "vlm", "docling-serve"),
        ("--adopt", "vllm", "--sleep-mode-backend lowtide"),
        ("--idle", "task", "is not a time"),
    ] {
        let output = lowtide(&world, &["run", option, word, "--", "true"]).output();
        let output = output.expect("lowtide runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(word) && text.contains(allowed), "{text}");
    }
}

#[test]
fn run_with_adopt_prepares_python_and_keeps_what_was_there() {
    let world = World::new();
    let folder = tempfile::TempDir::new().expect("a folder");
    let library = folder.path().join("liblowtide_agent.so");
    std::fs::copy(agent(), &library).expect("the agent");
    let print = r#"echo "$LOWTIDE_ADOPT $PYTHONPATH""#;
    let arguments = ["run", "--adopt", "autorag", "--", "sh", "-c", print];
    let said = || {
        let mut command = lowtide(&world, &arguments);
        command.env("LOWTIDE_AGENT_LIBRARY", &library).env("PYTHONPATH", "/mine:/yours");
        let output = command.output().expect("lowtide runs");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), text)
    };
    let (code, text) = said();
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("--adopt is not installed"), "{text}");
    let adopt = folder.path().canonicalize().expect("a path").join("adopt");
    std::fs::create_dir(&adopt).expect("a folder");
    std::fs::write(adopt.join("sitecustomize.py"), "").expect("a file");
    let (code, text) = said();
    assert_eq!(code, Some(0), "{text}");
    let expected = format!("autorag {}:/mine:/yours", adopt.display());
    assert_eq!(text.trim(), expected);
}

#[test]
fn status_lists_a_program_before_its_first_cuda_call_and_forgets_it_at_its_end() {
    let world = World::new();
    let said = |arguments: &[&str]| {
        let done = lowtide(&world, arguments).env("COLUMNS", "200").output().expect("lowtide runs");
        let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        (done.status.code(), text)
    };
    let notes = || {
        let names = std::fs::read_dir(world.folder().join("run/lowtide")).expect("a folder");
        let names = names.map(|entry| entry.expect("an entry").file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("started-")).collect::<Vec<_>>()
    };
    let mut program = run(&world, &[]);
    program.does("seed 0 0");
    let (pid, yet) = (program.pid(), "no CUDA call of it was seen yet");
    for arguments in [&["status"][..], &["status", &pid], &["status", "--json"]] {
        let (code, text) = said(arguments);
        assert!(code == Some(0) && text.contains(&pid) && text.contains(yet), "{text}");
    }
    for verb in ["sleep", "wake", "release"] {
        let (code, text) = said(&[verb, &pid]);
        assert!(code == Some(3) && text.contains(yet), "{verb}: {text}");
    }
    program.does("start");
    let (_, text) = said(&["status"]);
    assert!(text.contains("awake") && !text.contains(yet), "{text}");
    assert_eq!(text.matches(&format!("process {pid}")).count(), 1, "{text}");
    let [note] = notes().try_into().expect("one program");
    // Another process that has got the number later, and a program of a PID namespace that is gone.
    let (number, _) = note.rsplit_once('-').unwrap();
    for stale in [format!("{number}-7"), "started-1-2-3".to_owned()] {
        std::fs::write(world.folder().join("run/lowtide").join(stale), "").expect("a file");
    }
    let day_before = std::time::SystemTime::now() - std::time::Duration::from_secs(25 * 60 * 60);
    let foreign =
        std::fs::File::options().write(true).open(world.folder().join("run/lowtide/started-1-2-3"));
    foreign.and_then(|file| file.set_modified(day_before)).expect("a file");
    let _listed = said(&["status"]);
    assert_eq!(notes(), [note]);
    drop(program);
    let (_, text) = said(&["status"]);
    assert!(text.contains("no program of this user was started"), "{text}");
    assert!(notes().is_empty());
    let failed = said(&["run", "--", "/no/such/program"]);
    assert!(failed.0 == Some(3) && notes().is_empty(), "{}", failed.1);
}

#[test]
fn without_a_driver_run_says_once_what_works_and_status_says_why() {
    let world = World::new();
    let nowhere = |command: &mut Command| {
        command.env("LOWTIDE_CUDA_LIBRARY", "/nowhere.so").output().unwrap()
    };
    let arguments = ["run", "--idle", "5m", "--", "sh", "-c", "exec \"$0\" status", PROGRAM];
    let done = nowhere(&mut lowtide(&world, &arguments));
    let said = String::from_utf8_lossy(&done.stderr).replace("\n ", "");
    assert_eq!(said.matches("nothing of this program can be freed here").count(), 1, "{said}");
    for what in ["warning", "LOWTIDE_DEVICE=cpu", "lowtide.Worker", "/nowhere.so"] {
        assert!(said.contains(what), "{what}: {said}");
    }
    let listed = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        done.status.success() && listed.contains("nothing of it can be freed here"),
        "{listed}"
    );
}

#[test]
fn a_stopped_program_keeps_nobody_from_seeing_the_others() {
    let world = World::new();
    let (mut one, mut other) = (run(&world, &[]), run(&world, &[]));
    one.does("start");
    other.does("start");
    let signal = |signal: &str| {
        let sent = Command::new("kill").args([signal, &one.pid()]).status();
        assert!(sent.is_ok_and(|status| status.success()));
    };
    signal("-STOP");
    let done = lowtide(&world, &["status"]).env("COLUMNS", "200").output().unwrap();
    let asked = ["status", "sleep", "wake", "release"].map(|verb| {
        let asked = lowtide(&world, &[verb, &one.pid()]).env("COLUMNS", "200").output().unwrap();
        (asked.status.code(), String::from_utf8_lossy(&asked.stderr).into_owned())
    });
    signal("-CONT");
    for (code, said) in asked {
        assert!(code == Some(3) && said.contains("kill -CONT"), "{code:?} {said}");
    }
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(out.contains(&format!("process {}", other.pid())), "{out}");
    assert!(
        err.contains(&format!("process {} does not answer: it is stopped", one.pid())),
        "{err}"
    );
}

#[test]
fn a_program_of_another_user_is_not_said_to_have_no_agent() {
    let world = World::new();
    // Only root can start one.
    let started = Command::new("sleep").arg("100").uid(65534).spawn();
    let Ok(mut other) = started else { return println!("skipped: this user is not root") };
    for verb in ["status", "sleep"] {
        let asked = lowtide(&world, &[verb, &other.id().to_string()]).output().unwrap();
        let said = String::from_utf8_lossy(&asked.stderr);
        assert_eq!(asked.status.code(), Some(3), "{said}");
        assert!(said.contains("belongs to another user"), "{said}");
    }
    other.kill().and_then(|()| other.wait()).unwrap();
}

#[test]
fn an_agent_in_a_folder_with_blanks_and_colons_is_in_the_program() {
    let world = World::new();
    let folder = world.folder().join("a b:c");
    std::fs::create_dir(&folder).unwrap();
    let moved = folder.join("liblowtide_agent.so");
    std::fs::copy(agent(), &moved).unwrap();
    for _ in 0..2 {
        let mut command = lowtide(&world, &["run", "--"]);
        command.arg(client(Route::Dlsym)).env("LOWTIDE_AGENT_LIBRARY", &moved);
        let mut program = world.spawn(&mut command);
        program.does("start");
        assert!(!program.status().is_asleep);
    }
}

#[test]
fn an_agent_that_does_not_load_is_told_before_the_program_starts() {
    let world = World::new();
    let in_folder = |name: &str| world.folder().join(name);
    let whole = std::fs::read(agent()).unwrap();
    std::fs::write(in_folder("short.so"), &whole[..whole.len() / 3]).unwrap();
    std::fs::write(in_folder("text.so"), "no library").unwrap();
    let source = in_folder("other.c");
    let version = "const char *lowtide_agent_version(void) { return \"0.0.7\"; }";
    std::fs::write(&source, version).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(in_folder("other.so")).arg(&source);
    assert!(compiler.status().is_ok_and(|status| status.success()));
    let agents = [
        (in_folder("short.so"), "cannot be loaded"),
        (in_folder("text.so"), "cannot be loaded"),
        (Double::path(), "cannot be loaded"),
        (in_folder("other.so"), "is of version 0.0.7"),
        (in_folder("nowhere.so"), "which is no file"),
    ];
    for (agent, words) in agents {
        let run = |options: &[&str]| {
            let mut command = lowtide(&world, &["run"]);
            command.args(options).args(["--", "echo", "it ran"]);
            command.env("LOWTIDE_AGENT_LIBRARY", &agent).output().unwrap()
        };
        let done = run(&[]);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(said.contains(words), "{}: {said}", agent.display());
        assert_eq!((done.status.code(), done.stdout), (Some(3), Vec::new()), "{said}");
        let done = run(&["--without-agent-if-broken"]);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(said.contains("runs without lowtide") && said.contains(words), "{said}");
        assert_eq!((done.status.code(), &*done.stdout), (Some(0), &b"it ran\n"[..]), "{said}");
    }
}

/// Compiles a C source in the folder of a test's machine.
fn compiled(world: &World, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let (to, from) = (world.folder().join(name), world.folder().join("source.c"));
    std::fs::write(&from, source).unwrap();
    let mut compiler = Command::new("cc");
    assert!(compiler.args(options).arg("-o").args([&to, &from]).status().unwrap().success());
    to
}

#[test]
fn libraries_that_a_person_preloads_come_first_and_may_print() {
    let world = World::new();
    let source = "#include <stdio.h>\n__attribute__((destructor)) static void end(void) { puts(\"it ends\"); }";
    let own = compiled(&world, "own.so", source, &["-shared", "-fPIC"]);
    let mut command = lowtide(&world, &["run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let done = command.env("LD_PRELOAD", &own).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let both = format!("{}:{}\n", own.display(), agent().display());
    assert_eq!(said, both, "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_program_with_a_sanitizer_runs() {
    let world = World::new();
    let source = "#include <stdio.h>\nint main(void) { puts(\"it ran\"); return 0; }";
    let program = compiled(&world, "program", source, &["-fsanitize=address"]);
    let mut command = lowtide(&world, &["run", "--"]);
    let done = command.arg(program).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!((done.status.code(), &*done.stdout), (Some(0), &b"it ran\n"[..]), "{said}");
}

#[test]
fn a_runtime_folder_with_a_path_too_long_for_a_socket_serves_all_the_same() {
    let world = World::new();
    let long = world.folder().join("run").join("a-folder-of-a-job/".repeat(7));
    std::fs::create_dir_all(&long).unwrap();
    let with = |command: &mut Command| command.env("XDG_RUNTIME_DIR", &long).output().unwrap();
    let mut command = lowtide(&world, &["run", "--", &client(Route::Dlsym).to_string_lossy()]);
    command.env("XDG_RUNTIME_DIR", &long).env("LOWTIDE_HELPER_PROGRAM", helper());
    let mut program = world.spawn(&mut command);
    program.does("start; alloc 0 4194304; write 0 5");
    for (verb, said) in [("status", "awake"), ("sleep", "released"), ("suspend", "released")] {
        let done = with(&mut lowtide(&world, &[verb, &program.pid()]));
        let text = String::from_utf8_lossy(&done.stdout);
        assert!(text.contains(said), "{verb}: {text} {}", String::from_utf8_lossy(&done.stderr));
    }
    let listed = with(&mut lowtide(&world, &["status"]));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("suspended"), "{listed:?}");
    program.does("check 0");
}

#[test]
#[allow(unsafe_code, reason = "sets what signals do in a child")]
fn a_program_ignores_the_signals_that_it_would_ignore_without() {
    let world = World::new();
    let signals = [libc::SIGPIPE, libc::SIGCHLD];
    // A shell does not leave each of them ignored.
    let ignore = move || {
        for signal in signals {
            // SAFETY: in a child that is about to be the program.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        Ok(())
    };
    let ignored = |start: &[&str]| {
        let mut command = world.command(start[0].as_ref());
        command.args(&start[1..]).args(["grep", "SigIgn", "/proc/self/status"]);
        command.env("LOWTIDE_AGENT_LIBRARY", agent());
        // SAFETY: it may be called there.
        let output = unsafe { command.pre_exec(ignore) }.output().expect("it starts");
        let [out, said] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (out, said)
    };
    let (without, _) = ignored(&["env"]);
    let (with, said) = ignored(&[PROGRAM, "run", "--"]);
    let bits =
        without.rsplit('\t').next().and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    let both = signals.iter().fold(0, |all, signal| all | 1 << (signal - 1));
    assert_eq!(bits.map(|bits| bits & both), Some(both), "{without}");
    assert_eq!(with, without, "{said}");
}

#[test]
fn a_report_of_a_program_has_its_ledger_over_time() {
    let world = World::new();
    let mut program = run(&world, &[]);
    program.does("start; alloc 0 8388608; write 0 5");
    let folder = tempfile::tempdir().unwrap();
    let html = folder.path().join("report.html");
    let arguments = ["report", &program.pid(), "--for", "0.6", "-o", html.to_str().unwrap()];
    let done = lowtide(&world, &arguments).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    let page = std::fs::read_to_string(html).unwrap();
    let at_least = |text: &str, count| assert!(page.matches(text).count() >= count, "{text}");
    at_least("\"status\":{", 2);
    at_least("\"kind\":\"live\"", 2);
    at_least("lowtide why PID --json", 1);
}
