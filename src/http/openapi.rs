//! The contract: every route with its description, in one list. `openapi.yaml`
//! is generated from it, and a test holds the two together.

use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{
    App, attempts, audit, budgets, calls, cancel, everyone, extend, fence, keys, late_usage, liabilities, policy,
    reservations, settle,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "spend-ledger",
        description = "The ledger between a company's workers and every paid provider they call. Workers reserve \
                       before they spend, extend before they cross their ceiling, and settle what they used, exactly \
                       once. Amounts are exact decimals: strings in answers, strings or numbers in requests.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    modifiers(&Bearer),
    security(("key" = [])),
    components(schemas(policy::ChangeView)),
    tags(
        (name = "workers", description = "Reserve, call, extend, settle, cancel, fence, take over, look"),
        (name = "finance", description = "What is open, what came too late"),
        (name = "operators", description = "Policy, keys, audit"),
        (name = "everyone", description = "Health, metrics, this document"),
    ),
)]
struct Contract;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut Document) {
        let scheme = Http::builder()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An API key: `Authorization: Bearer sl_…`"))
            .build();
        if let Some(components) = document.components.as_mut() {
            components.add_security_scheme("key", SecurityScheme::Http(scheme));
        }
    }
}

/// Every route that is in the contract.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Contract::openapi())
        .routes(routes!(reservations::reserve, reservations::list))
        .routes(routes!(reservations::get))
        .routes(routes!(attempts::renew))
        .routes(routes!(extend::extend))
        .routes(routes!(attempts::take_over))
        .routes(routes!(calls::admit, calls::list))
        .routes(routes!(calls::settle))
        .routes(routes!(settle::settle))
        .routes(routes!(cancel::cancel))
        .routes(routes!(fence::fence))
        .routes(routes!(budgets::budgets))
        .routes(routes!(liabilities::list))
        .routes(routes!(late_usage::list))
        .routes(routes!(policy::apply))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::revoke))
        .routes(routes!(audit::list))
        .routes(routes!(everyone::health))
        .routes(routes!(everyone::ready))
        .routes(routes!(everyone::metrics))
        .routes(routes!(everyone::document))
}

pub(super) fn yaml(document: &Document) -> String {
    document.to_yaml().unwrap_or_else(|error| format!("# the contract could not be written: {error}\n"))
}

/// The contract as `openapi.yaml` has it.
#[must_use]
pub fn document() -> String {
    yaml(&routes().into_openapi())
}
