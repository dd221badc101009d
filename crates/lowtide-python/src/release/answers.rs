//! What Python answers, as data of ours.

use lowtide::{Bytes, Touch};
use pyo3::prelude::*;

/// A size that may not be known.
pub(crate) fn bytes(answer: &Bound<'_, PyAny>) -> PyResult<Option<Bytes>> {
    Ok(answer.extract::<Option<i64>>()?.map(|size| Bytes(size.max(0).unsigned_abs())))
}

/// A difference that is nothing where it is negative.
pub(crate) fn unsigned(answer: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    Ok(Bytes(answer.extract::<i64>()?.max(0).unsigned_abs()))
}

/// What was touched, with sizes where they are known.
pub(crate) fn touches(answer: &Bound<'_, PyAny>) -> PyResult<Vec<Touch>> {
    let touched: Vec<(String, Option<u64>)> = answer.extract()?;
    Ok(touched.into_iter().map(|(what, size)| Touch { what, bytes: size.map(Bytes) }).collect())
}

/// A holder: path, what it holds, how many references, bytes, what cuts it.
type Told = (String, String, usize, Option<u64>, Option<String>);

/// Who holds something.
pub(crate) fn holders(answer: &Bound<'_, PyAny>) -> PyResult<Vec<lowtide::Holder>> {
    let holder = |(path, holds, count, held, cut): Told| lowtide::Holder {
        path,
        holds,
        count,
        held: held.map(Bytes),
        cut,
    };
    Ok(answer.extract::<Vec<Told>>()?.into_iter().map(holder).collect())
}
