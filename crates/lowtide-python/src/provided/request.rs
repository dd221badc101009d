//! A release as Python asks for it: a ladder, a target, the steps of the `drop` rung, and a witness
//! that names who holds what has survived.

use std::sync::{Arc, Mutex};

use lowtide::device::Bytes;
use lowtide::release::rungs::Parts;
use lowtide::release::{
    Climb, Climbed, Expectation, Failure, Inventory, Request, Rung, RungName, Target, Touch,
    WhenBusy,
};
use lowtide_walk::call_function;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::calls::attached::attached;
use crate::calls::climb::{self, within};
use crate::calls::parse::{seconds, target};
use crate::calls::waiting::lock;
use crate::data::values::Holder;
use crate::provided::device::PythonDevice;
use crate::provided::hooks::{hook, size};

/// The ladders of the Python package.
#[pyclass(
    frozen,
    eq,
    hash,
    from_py_object,
    rename_all = "SCREAMING_SNAKE_CASE",
    module = "lowtide._native"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Ladder {
    /// Collects and trims. Work may go on.
    Cache,
    /// The same, and collects in full only where that may free something.
    CacheByNeed,
    /// Trims. Work may go on.
    Trim,
    /// Drops the steps of the release, clears cheap caches, collects and trims. Work of others may go
    /// on.
    Stage,
    /// The same after waiting for work, and with the `libraries` rung.
    StageWithLibraries,
    /// Waits for work, drops, frees what libraries hold, clears caches, collects and trims.
    Shutdown,
    /// Climbs towards a target, gentle rungs first, several times if that helps.
    Gradual,
}

impl Ladder {
    fn rungs(self) -> lowtide::release::Ladder {
        match self {
            Ladder::Cache | Ladder::CacheByNeed => lowtide::release::Ladder::cache(),
            Ladder::Trim => lowtide::release::Ladder::trim(),
            Ladder::Stage => {
                of_names(&[RungName::Drop, RungName::Caches, RungName::Collect, RungName::Trim])
                    .with_cheap_caches()
            }
            Ladder::StageWithLibraries => of_names(&[
                RungName::Quiesce,
                RungName::Drop,
                RungName::Libraries,
                RungName::Caches,
                RungName::Collect,
                RungName::Trim,
            ])
            .with_cheap_caches(),
            Ladder::Shutdown => lowtide::release::Ladder::shutdown(),
            Ladder::Gradual => lowtide::release::Ladder::gradual(),
        }
    }
}

fn of_names(names: &[RungName]) -> lowtide::release::Ladder {
    lowtide::release::Ladder::of_names(names).expect("rungs that lowtide brings")
}

/// The options of a release, as Python gives them.
pub(crate) struct Options<'py> {
    pub(crate) to: Option<Bound<'py, PyAny>>,
    /// The memory of what the steps drop, counted before they do.
    pub(crate) claim_bytes: Option<u64>,
    pub(crate) steps: Option<Bound<'py, PyList>>,
    pub(crate) witness: Option<Py<PyAny>>,
    /// Whether the holders that the witness names should be gone: the verdict is `pinned` if there
    /// are some.
    pub(crate) pins: bool,
    pub(crate) wait_s: f64,
    /// How long planning it has taken.
    pub(crate) planned_s: f64,
    pub(crate) every_rung: bool,
    /// Whether work of others may go on while the steps are dropped.
    pub(crate) beside_work: bool,
    /// Hooks for the `libraries` rung of this release, in place of the registered ones.
    pub(crate) libraries: Option<Bound<'py, PyAny>>,
}

/// Makes a request of what Python asks for.
pub(crate) fn request(
    py: Python<'_>,
    name: &str,
    ladder: Ladder,
    options: Options<'_>,
    device: Option<&Arc<PythonDevice>>,
) -> PyResult<Request> {
    let to = options.to.as_ref().map(target).transpose()?;
    let mut rungs = match (ladder, to) {
        // Only a process that is suspended or has ended uses nothing.
        (Ladder::Gradual, Some(Target::Under(Bytes::ZERO))) => lowtide::release::Ladder::zero(),
        _ => ladder.rungs(),
    };
    let mut is_alone = false;
    if let Some(hooks) = &options.libraries {
        let hooks = hooks.try_iter()?.map(|object| Ok(hook(&object?)?.1));
        let hooks = hooks.collect::<PyResult<Vec<_>>>()?;
        let rung: Arc<dyn Rung> = Arc::new(Parts::new(RungName::Libraries, hooks));
        rungs = rungs.replace(&RungName::Libraries, &rung);
        is_alone = true;
    }
    if let Some(list) = &options.steps {
        let steps = take_steps(list)?;
        let expected = steps.iter().map(|step| step.size).sum();
        let lets_work_go_on = options.beside_work;
        let rung: Arc<dyn Rung> =
            Arc::new(DropSteps { expected, lets_work_go_on, steps: Mutex::new(steps) });
        rungs = rungs.replace(&RungName::Drop, &rung);
        is_alone = true;
    }
    let mut request = Request::new(name, rungs);
    if let Some(climb) = climb::current(py)? {
        request = request.within(&climb);
    }
    if ladder == Ladder::CacheByNeed {
        request = request.by_need();
    }
    request.every_rung = options.every_rung;
    request.when_busy = match options.wait_s {
        wait_s if wait_s <= 0.0 => WhenBusy::Refuse,
        wait_s => WhenBusy::Wait(seconds(wait_s)?),
    };
    request.planned = seconds(options.planned_s)?;
    if let Some(to) = to {
        request = request.to(to);
    }
    if let Some(claimed) = options.claim_bytes {
        request = request.claiming(Bytes(claimed));
    }
    if is_alone {
        request = request.alone();
    }
    if let Some(witness) = options.witness {
        let device = device.cloned();
        let named = Arc::new(move || holders_named_by(&witness, device.as_deref()));
        request = if options.pins { request.asking(named) } else { request.asking_users(named) };
    }
    Ok(request)
}

fn holders_named_by(
    witness: &Py<PyAny>,
    device: Option<&PythonDevice>,
) -> Vec<lowtide::release::Holder> {
    let named = attached(|py| {
        let holders: Vec<Py<Holder>> = call_function(witness.bind(py), ())?.extract()?;
        Ok(holders.iter().map(|holder| holder.get().0.clone()).collect())
    });
    named.unwrap_or_else(|words| {
        if let Some(device) = device {
            device.note_failure("who still holds memory", &words);
        }
        Vec::new()
    })
}

/// One reference to drop.
struct DropStep {
    path: String,
    size: Option<Bytes>,
    cut: Py<PyAny>,
}

/// Takes the steps out of their list: the caller keeps the list, and with it everything that the
/// steps refer to.
fn take_steps(list: &Bound<'_, PyList>) -> PyResult<Vec<DropStep>> {
    let steps = list.iter().map(|step| {
        let path: String = step.getattr("path")?.extract()?;
        let size = size(&step.getattr("bytes")?)?;
        Ok(DropStep { path, size, cut: step.getattr("cut")?.unbind() })
    });
    let steps = steps.collect::<PyResult<_>>()?;
    list.call_method0("clear")?;
    Ok(steps)
}

/// The `drop` rung of one release: its steps in order, wrappers first.
struct DropSteps {
    expected: Option<Bytes>,
    lets_work_go_on: bool,
    steps: Mutex<Vec<DropStep>>,
}

impl Rung for DropSteps {
    fn name(&self) -> RungName {
        RungName::Drop
    }

    fn lets_work_go_on(&self) -> bool {
        self.lets_work_go_on
    }

    fn expect(&self, _: &Inventory) -> Expectation {
        if lock(&self.steps).is_empty() {
            return Expectation::Skip("there is nothing to drop".to_owned());
        }
        Expectation::Bytes(self.expected)
    }

    fn climb(&self, _: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        // The lock is released before the interpreter is asked for.
        let steps = std::mem::take(&mut *lock(&self.steps));
        let mut climbed = Climbed::default();
        for DropStep { path, size, cut } in steps {
            climbed.attempt(&path, || {
                // The step is dropped with the cut: it refers to both ends.
                attached(|py| {
                    let cut = cut.into_bound(py);
                    within(py, climb, || call_function(&cut, ()).map(|_| ()))
                })?;
                Ok(vec![Touch { what: path.clone(), bytes: size }])
            });
        }
        Ok(climbed)
    }
}
