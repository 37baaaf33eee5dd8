//! The calls of a reservation, page by page.

use serde::Deserialize;

use crate::error::{Error, read};
use crate::inner::Inner;
use crate::view::{CallItem, CallState};
use crate::wire::Request;

/// How many calls a page has, at most.
const PAGE: &str = "500";
/// How many pages are asked for, at most.
const MOST_PAGES: u32 = 200;

#[derive(Deserialize)]
struct Page {
    items: Vec<CallItem>,
    next_cursor: Option<String>,
}

/// The calls in this state, newest first.
pub(crate) async fn calls(inner: &Inner, state: Option<CallState>) -> Result<Vec<CallItem>, Error> {
    let mut of = inner.url(&["calls"]);
    of.query_pairs_mut().append_pair("limit", PAGE);
    if let Some(state) = state {
        let invalid = Error::Invalid { field: "the state of the calls", reason: "is not one that can be asked for" };
        of.query_pairs_mut().append_pair("state", state.word().ok_or(invalid)?);
    }
    let (mut calls, mut url) = (Vec::new(), of.clone());
    for _ in 0..MOST_PAGES {
        let page: Page = read(&inner.learn(inner.core.wire.send(&Request::get(url)).await)?)?;
        calls.extend(page.items);
        let Some(cursor) = page.next_cursor else { break };
        url = of.clone();
        url.query_pairs_mut().append_pair("cursor", &cursor);
    }
    Ok(calls)
}
