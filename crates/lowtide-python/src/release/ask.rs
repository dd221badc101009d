//! What Python asks of a release: a ladder by the names of its rungs, a target in words, the steps of a
//! plan, and a witness.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lowtide::{
    Bytes, Climb, Climbed, Expectation, Failure, Holder, Inventory, Ladder, Request, Rung,
    RungName, Target, Touch, WhenBusy, rungs::Parts,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::answers::holders;
use super::device::{PythonDevice, attached, hook, taken};

/// One reference that is to be cut.
pub(crate) struct Step {
    pub(crate) path: String,
    pub(crate) size: Option<Bytes>,
    pub(crate) cut: Py<PyAny>,
}

/// The steps of one plan, in its order: wrappers first.
struct Cuts {
    expected: Option<Bytes>,
    lets_work_go_on: bool,
    steps: Mutex<Vec<Step>>,
}

impl Rung for Cuts {
    fn name(&self) -> RungName {
        RungName::Drop
    }

    fn lets_work_go_on(&self) -> bool {
        self.lets_work_go_on
    }

    fn expect(&self, _: &Inventory) -> Expectation {
        if self.steps.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return Expectation::Skip("there is nothing to let go of".to_owned());
        }
        Expectation::Bytes(self.expected)
    }

    fn climb(&self, _: &Inventory, _: &Climb) -> Result<Climbed, Failure> {
        // Out of the lock before the interpreter is asked for.
        let steps = std::mem::take(&mut *self.steps.lock().unwrap_or_else(PoisonError::into_inner));
        let mut climbed = Climbed::default();
        for Step { path, size, cut } in steps {
            climbed.attempt(&path, || {
                // The step goes with the cut: it refers to both ends.
                attached(|py| cut.into_bound(py).call0().map(|_| ()))?;
                Ok(vec![Touch { what: path.clone(), bytes: size }])
            });
        }
        Ok(climbed)
    }
}

/// What Python may say of a release, beside its name and its ladder.
pub(crate) struct Wishes<'py> {
    pub(crate) to: Option<Bound<'py, PyAny>>,
    pub(crate) steps: Option<Bound<'py, PyList>>,
    pub(crate) witness: Option<Py<PyAny>>,
    /// Whether whom the witness names should have let go.
    pub(crate) pins: bool,
    pub(crate) wait_s: f64,
    /// What planning it has taken.
    pub(crate) planned_s: f64,
    pub(crate) attempts: u32,
    pub(crate) every_rung: bool,
    pub(crate) beside_work: bool,
    /// Rungs of this release alone, by the names of those whose place they take, and their parts.
    pub(crate) parts: Option<Bound<'py, PyDict>>,
}

/// The release that is asked for.
pub(crate) fn ask(
    name: &str,
    names: &[String],
    wishes: Wishes<'_>,
    device: Option<&Arc<PythonDevice>>,
) -> PyResult<Request> {
    let names: Vec<RungName> = names.iter().map(|name| RungName::from(name.as_str())).collect();
    let ladder = Ladder::of_names(&names);
    let mut ladder = ladder.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let mut is_alone = false;
    if let Some(list) = &wishes.steps {
        let steps = taken(list)?;
        let expected = steps.iter().map(|step| step.size).sum();
        let lets_work_go_on = wishes.beside_work;
        let rung: Arc<dyn Rung> =
            Arc::new(Cuts { expected, lets_work_go_on, steps: Mutex::new(steps) });
        ladder = ladder.replace(&RungName::Drop, &rung);
        is_alone = true;
    }
    if let Some(parts) = &wishes.parts {
        for (name, objects) in parts.iter() {
            let name = RungName::from(name.extract::<String>()?.as_str());
            let hooks = objects.try_iter()?.map(|object| Ok(hook(&object?)?.1));
            let hooks = hooks.collect::<PyResult<Vec<_>>>()?;
            let rung: Arc<dyn Rung> = Arc::new(Parts::new(name.clone(), hooks));
            ladder = ladder.replace(&name, &rung);
            is_alone = true;
        }
    }
    let mut ask = Request::new(name, ladder.attempts(wishes.attempts));
    ask.every_rung = wishes.every_rung;
    ask.when_busy = match wishes.wait_s {
        wait_s if wait_s <= 0.0 => WhenBusy::Refuse,
        wait_s => WhenBusy::Wait(seconds(wait_s)?),
    };
    ask.planned = seconds(wishes.planned_s)?;
    if let Some(to) = &wishes.to {
        ask = ask.to(target(to)?);
    }
    if is_alone {
        ask = ask.alone();
    }
    if let Some(witness) = wishes.witness {
        let device = device.cloned();
        let heard = Arc::new(move || testimony(&witness, device.as_deref()));
        ask = if wishes.pins { ask.asking(heard) } else { ask.asking_users(heard) };
    }
    Ok(ask)
}

fn testimony(witness: &Py<PyAny>, device: Option<&PythonDevice>) -> Vec<Holder> {
    let said = attached(|py| holders(&witness.bind(py).call0()?));
    said.unwrap_or_else(|words| {
        if let Some(device) = device {
            device.not_heard("who still holds something", &words);
        }
        Vec::new()
    })
}

/// `"floor"`, `"512 MiB"`, a number of bytes, or `"free 2 GiB"`.
pub(crate) fn target(value: &Bound<'_, PyAny>) -> PyResult<Target> {
    let Ok(text) = value.extract::<String>() else { return Ok(Target::Under(size(value)?)) };
    let text = text.trim();
    if text == "floor" {
        return Ok(Target::Floor);
    }
    match text.strip_prefix("free ") {
        Some(least) => Ok(Target::Free(parsed(least)?)),
        None => Ok(Target::Under(parsed(text)?)),
    }
}

/// A number of bytes, or a size with its unit.
pub(crate) fn size(value: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    if let Ok(bytes) = value.extract::<u64>() {
        return Ok(Bytes(bytes));
    }
    let text: String = value.extract().map_err(|_| {
        PyTypeError::new_err("a size is a number of bytes that is not negative, or text: \"2 GiB\"")
    })?;
    parsed(&text)
}

fn parsed(text: &str) -> PyResult<Bytes> {
    text.parse().map_err(|error| {
        let hint = "; write a size such as \"512 MiB\", \"free 2 GiB\" for what is to be free, or \
                    \"floor\"";
        PyValueError::new_err(format!("{error}{hint}"))
    })
}

/// A time in seconds that can be waited for.
pub(crate) fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|error| PyValueError::new_err(format!("{value} s cannot be waited for: {error}")))
}
