//! Holders: the references that keep memory alive which a release was meant to free.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, printable};

/// A reference that keeps memory alive, by a path that a person can find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Holder {
    /// The place of the reference: `runner.pooling.model`.
    pub path: String,
    /// The object it keeps alive: `runner.model`.
    pub holds: String,
    /// The number of references by this path.
    pub count: usize,
    /// The place in the source where the reference was taken, where that is known: `src/c.rs:44`.
    #[serde(default)]
    pub since: Option<String>,
    /// The memory that is freed with the last of them, where that is known.
    #[serde(rename = "bytes")]
    pub held: Option<Bytes>,
    /// The statement that removes the reference, where one is known: `del cache["model"]`.
    pub cut: Option<String>,
    /// A sentence that says what a person does where no statement removes the reference.
    #[serde(default)]
    pub by_hand: Option<String>,
    /// The number by which a host language applies this cut, where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// The numbers of the other cuts without which this one frees nothing.
    #[serde(skip)]
    pub together: Vec<u32>,
}

impl Holder {
    /// Creates a holder with one reference, of which nothing else is known.
    pub fn new(path: impl Into<String>, holds: impl Into<String>) -> Holder {
        let (path, holds) = (path.into(), holds.into());
        let (since, held, cut, by_hand, number) = (None, None, None, None, None);
        Holder { path, holds, count: 1, since, held, cut, by_hand, number, together: Vec::new() }
    }

    /// Returns ` since src/c.rs:44`, or nothing where the place is not known.
    pub fn since_text(&self) -> String {
        self.since.as_ref().map_or_else(String::new, |since| format!(" since {since}"))
    }

    /// Returns what removes the reference: a statement that runs as it stands, with a comment; or
    /// `by hand: ` and a sentence. Nothing in between. With a number, there is always a statement.
    ///
    /// ```
    /// use lowtide_types::Holder;
    ///
    /// let holder = Holder { cut: Some("del a[1]".into()), ..Holder::new("a[1]", "a model") };
    /// assert_eq!(holder.remedy(), "del a[1]  # lets a model go");
    /// let holder = Holder::new("profiler.hooks", "a model");
    /// assert_eq!(holder.remedy(), "by hand: drop profiler.hooks, which holds a model");
    /// ```
    pub fn remedy(&self) -> String {
        let (path, holds) = (printable(&self.path), printable(&self.holds));
        let others: Vec<String> = self.together.iter().map(u32::to_string).collect();
        let with = match others.split_last() {
            None => String::new(),
            Some((last, [])) => format!(" together with cut {last}"),
            Some((last, first)) => format!(" together with cuts {} and {last}", first.join(", ")),
        };
        match (&self.cut, &self.by_hand, self.number) {
            (Some(cut), _, None) => format!("{cut}  # lets {holds} go"),
            (Some(cut), _, Some(number)) => {
                format!("{cut}  # cut {number}: lets {holds} go{with}")
            }
            (None, _, Some(number)) => {
                format!("lowtide.cut({number})  # lets {holds} go{with}: {path}")
            }
            (None, Some(sentence), None) => format!("by hand: {}", printable(sentence)),
            (None, None, None) => format!("by hand: drop {path}, which holds {holds}"),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holder { path, holds, count, held, .. } = self;
        let references = if *count == 1 { "reference" } else { "references" };
        let (path, holds) = (printable(path), printable(holds));
        write!(f, "{path} holds {holds}{}, {count} {references}", self.since_text())?;
        held.map_or(Ok(()), |held| write!(f, ", {held}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_says_what_it_holds_how_often_and_how_much() {
        let mut holder = Holder::new("runner.pooling.model", "runner.model");
        (holder.count, holder.held) = (2, Some(Bytes::mib(48)));
        let text = "runner.pooling.model holds runner.model, 2 references, 48.0 MiB";
        assert_eq!(holder.to_string(), text);
        (holder.count, holder.held) = (1, None);
        assert_eq!(holder.to_string(), "runner.pooling.model holds runner.model, 1 reference");
        holder.since = Some("src/c.rs:44".to_owned());
        let text = "runner.pooling.model holds runner.model since src/c.rs:44, 1 reference";
        assert_eq!(holder.to_string(), text);
    }

    #[test]
    fn a_remedy_is_a_statement_or_a_sentence_by_hand() {
        let mut holder = Holder::new("thread 'loader': batch", "a \u{1b}[1mtensor");
        let sentence = "end the thread \u{7}";
        holder.by_hand = Some(sentence.to_owned());
        assert_eq!(holder.remedy(), r"by hand: end the thread \u{7}");
        holder.cut = Some("del batches[3]".to_owned());
        let remedy = holder.remedy();
        assert!(remedy.starts_with("del batches[3]  # "), "{remedy}");
        assert!(!remedy.contains('\u{1b}'), "{remedy}");
    }
}
