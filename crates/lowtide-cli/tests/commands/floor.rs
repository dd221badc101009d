//! The floor, as `doctor` measures and stores it: the child's own number, per device and driver, in a
//! file that nobody else can have planted.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use crate::program::{Finished, Machine};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

fn gpu(finished: &Finished) -> Value {
    finished.json()["devices"][0].clone()
}

fn stored(machine: &Machine) -> Vec<Value> {
    let text = fs::read_to_string(machine.path("cache/lowtide/floor.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn store(machine: &Machine, floors: &Value) {
    private_folder(&machine.path("cache"));
    private_folder(&machine.path("cache/lowtide"));
    fs::write(machine.path("cache/lowtide/floor.json"), floors.to_string()).unwrap();
}

fn private_folder(path: &Path) {
    let _ = fs::create_dir(path);
    fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_neighbour_is_not_part_of_the_floor() {
    // The neighbour has 100 MiB more while the child has its context, and not before or after.
    for settings in ["context=48MiB,breathing=100MiB", "context=48MiB,foreign=77:5MiB"] {
        let machine = Machine::with_double(settings);
        let answer = gpu(&machine.run(&["doctor", "--json"]));
        assert_eq!(answer["floor_bytes"], 48 * MIB, "{settings}");
        assert_eq!(answer["floor_from"], "process");
        assert_eq!(stored(&machine)[0]["floor_bytes"], 48 * MIB, "{settings}");
    }
}

#[test]
fn a_floor_that_only_the_device_tells_is_uncertain_and_not_stored() {
    for settings in ["context=48MiB,accounting=off", "context=48MiB,pid_offset=50000000"] {
        let machine = Machine::with_double(settings);
        let finished = machine.run(&["doctor", "--json"]);
        assert_eq!(gpu(&finished)["floor_bytes"], 48 * MIB, "{settings}");
        assert_eq!(gpu(&finished)["floor_from"], "difference", "{settings}");
        let text = machine.run(&["doctor"]).words();
        assert!(text.contains("about 48.0 MiB for a bare context"), "{text}");
        assert!(!machine.path("cache/lowtide/floor.json").exists());
    }
}

#[test]
fn a_floor_belongs_to_a_device_and_a_driver() {
    let machine = Machine::with_double("context=48MiB");
    machine.run(&["doctor"]);
    let mut floors = stored(&machine);
    floors[0]["driver"] = json!("470.1");
    floors[0]["floor_bytes"] = json!(7 * MIB);
    store(&machine, &json!(floors));
    assert_eq!(gpu(&machine.run(&["doctor", "--json"]))["floor_bytes"], 48 * MIB);
    assert_eq!(stored(&machine).len(), 2, "each driver keeps its own");
}

#[test]
fn a_floor_that_cannot_be_true_is_refused_and_measured_again() {
    let machine = Machine::with_double("total=1GiB,context=48MiB");
    machine.run(&["doctor"]);
    let floors = stored(&machine);
    for wrong in [2048 * MIB, u64::MAX, 0] {
        let mut floors = floors.clone();
        floors[0]["floor_bytes"] = json!(wrong);
        store(&machine, &json!(floors));
        let answer = machine.run(&["doctor", "--json"]);
        assert_eq!(gpu(&answer)["floor_bytes"], 48 * MIB, "{wrong}");
        assert!(answer.err().contains("the stored floor is not used"), "{}", answer.err());
        assert_eq!(stored(&machine)[0]["floor_bytes"], 48 * MIB);
    }
}

#[test]
fn what_is_stored_is_this_users_alone() {
    let machine = Machine::with_double("context=48MiB");
    machine.run(&["doctor"]);
    let mode = |path| fs::metadata(machine.path(path)).unwrap().mode() & 0o777;
    assert_eq!((mode("cache/lowtide"), mode("cache/lowtide/floor.json")), (0o700, 0o600));
}

#[test]
fn a_planted_file_is_neither_waited_for_nor_believed_nor_followed() {
    let machine = Machine::with_double("context=48MiB");
    machine.run(&["doctor"]);
    let (file, victim) = (machine.path("cache/lowtide/floor.json"), machine.path("victim"));
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&victim, good.replace("floor_bytes\": 5", "floor_bytes\": 6")).unwrap();
    let before = fs::read_to_string(&victim).unwrap();
    let plants: [(&str, &dyn Fn()); 4] = [
        ("a FIFO", &|| {
            assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        }),
        ("an endless device", &|| symlink("/dev/zero", &file).unwrap()),
        ("a link", &|| symlink(&victim, &file).unwrap()),
        ("a huge file", &|| File::create(&file).unwrap().set_len(1 << 42).unwrap()),
    ];
    for (what, plant) in plants {
        fs::remove_file(&file).unwrap();
        plant();
        let answer = machine.run(&["doctor"]);
        assert_eq!(answer.code(), 0, "{what}: {}", answer.err());
        assert!(answer.words().contains("48.0 MiB for a bare context (measured now)"), "{what}");
        assert!(answer.err().contains("floor.json is"), "{what}: {}", answer.err());
        assert!(fs::symlink_metadata(&file).unwrap().is_file(), "{what} was replaced");
        assert_eq!(fs::read_to_string(&victim).unwrap(), before, "{what}");
    }
}

#[test]
fn a_folder_that_is_not_this_users_own_is_not_written_to() {
    let refused = |machine: &Machine, words: &str, elsewhere: &Path| {
        let answer = machine.run(&["doctor"]);
        assert_eq!(answer.code(), 0, "{}", answer.err());
        assert!(answer.words().contains("48.0 MiB for a bare context (measured now)"));
        assert!(answer.err().contains("could not be stored"), "{}", answer.err());
        assert!(answer.err().contains(words), "{}", answer.err());
        assert_eq!(fs::read_dir(elsewhere).unwrap().count(), 0, "nothing was written there");
    };
    let machine = Machine::with_double("context=48MiB");
    let elsewhere = machine.path("elsewhere");
    private_folder(&elsewhere);
    private_folder(&machine.path("cache"));
    symlink(&elsewhere, machine.path("cache/lowtide")).unwrap();
    refused(&machine, "Not a directory", &elsewhere);
    // A folder that everybody can write to, so that anybody could have made ours.
    let machine = Machine::with_double("context=48MiB");
    private_folder(&machine.path("cache"));
    fs::set_permissions(machine.path("cache"), Permissions::from_mode(0o777)).unwrap();
    refused(&machine, "other users may write to", &machine.path("cache"));
    if chown(machine.path("cache"), Some(65534), None).is_err() {
        println!("skipped: only root can give a folder to another user");
        return;
    }
    // Another user's home: `sudo` may keep HOME.
    fs::set_permissions(machine.path("cache"), Permissions::from_mode(0o700)).unwrap();
    refused(&machine, "belongs to user 65534, not to user 0", &machine.path("cache"));
}
