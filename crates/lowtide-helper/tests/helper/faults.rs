//! Every call and every write of a suspend and a resume fails, alone and with every other. Whatever the answer, the
//! program comes back with its bytes, and a refusal means that it never left.

use lowtide_proto::helper::{Answer, Ask};

use crate::world::{World, ask, until};

/// The journal's writes, in the place of a call.
const WRITE: &str = "write";
/// The calls that fail, with how many of each there can be.
const SITES: [(&str, u32); 7] = [
    ("cuCheckpointProcessGetState", 4),
    ("cuCheckpointProcessLock", 2),
    ("cuCheckpointProcessCheckpoint", 2),
    ("cuCheckpointProcessRestore", 2),
    ("cuCheckpointProcessUnlock", 2),
    ("nvmlDeviceGetMemoryInfo_v2", 12),
    (WRITE, 5),
];
/// The tries that a person, or a touch, has to bring a program back.
const TRIES: usize = 6;

type Fault = (&'static str, u32);

fn faults() -> Vec<Fault> {
    SITES.into_iter().flat_map(|(name, most)| (1..=most).map(move |nth| (name, nth))).collect()
}

fn survives(faults: [Fault; 2]) {
    let calls = faults.iter().filter(|(name, _)| *name != WRITE);
    let calls: Vec<String> = calls.map(|(name, nth)| format!("fail={name}@{nth}:999")).collect();
    let writes = faults.iter().filter(|(name, _)| *name == WRITE);
    let writes: Vec<String> = writes.map(|(_, nth)| nth.to_string()).collect();
    let world = World::new();
    let mut program = world.program(4);
    let helper = world.helper_on_full_disk(&calls.join(","), &writes.join("+"));
    match ask(&helper, program.suspend()) {
        Answer::Suspended(_) => {
            let is_back = |_| matches!(ask(&helper, program.resume(0)), Answer::Resumed(_));
            assert!((0..TRIES).any(is_back), "{faults:?}: it stays suspended");
        }
        // It is asked nothing more: nobody would bring it back.
        Answer::Refused { refusal } => println!("{faults:?}: {refusal}"),
        answer => panic!("{faults:?}: {answer:?}"),
    }
    program.is_right();
    until("it is forgotten", || ask(&helper, Ask::List) == Answer::List { processes: Vec::new() });
}

#[test]
fn every_call_and_write_fails_alone_and_twice_in_a_row() {
    for (index, one) in faults().into_iter().enumerate() {
        survives([one, one]);
        if let Some(next) = faults().get(index + 1).filter(|next| next.0 == one.0) {
            survives([one, *next]);
        }
    }
}

#[test]
fn every_pair_of_calls_and_writes_fails() {
    let all = faults();
    let pairs = all
        .iter()
        .enumerate()
        .flat_map(|(index, one)| all[index + 1..].iter().map(move |other| [*one, *other]));
    pairs.for_each(survives);
}
