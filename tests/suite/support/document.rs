//! The contract as the service publishes it.

use serde_json::{Map, Value};

/// `openapi.yaml`, read.
pub struct Document(pub Value);

/// One operation of the contract.
#[derive(Debug, Clone)]
pub struct Operation {
    pub method: String,
    pub path: String,
    pub id: String,
    /// Whether it needs a key.
    pub secured: bool,
    pub described: Value,
}

impl Document {
    pub fn read() -> Self {
        Self(serde_saphyr::from_str(&spend_ledger::http::document()).unwrap())
    }

    /// Every operation, in the order of paths.
    pub fn operations(&self) -> Vec<Operation> {
        let mut operations = Vec::new();
        for (path, item) in self.0["paths"].as_object().unwrap() {
            for (method, described) in item.as_object().unwrap() {
                operations.push(Operation {
                    method: method.to_uppercase(),
                    path: path.clone(),
                    id: described["operationId"].as_str().unwrap().to_owned(),
                    secured: described["security"].is_null(),
                    described: described.clone(),
                });
            }
        }
        operations
    }

    /// The operation that a request is for.
    pub fn operation(&self, method: &str, path: &str) -> Option<Operation> {
        let segments = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
        let asked = segments(path);
        self.operations().into_iter().find(|operation| {
            let template = segments(&operation.path);
            operation.method == method
                && template.len() == asked.len()
                && template.iter().zip(&asked).all(|(part, given)| part.starts_with('{') || part == given)
        })
    }

    /// A schema by name.
    pub fn schema(&self, name: &str) -> &Value {
        &self.0["components"]["schemas"][name]
    }

    /// The properties of an object schema, with those of its parts.
    pub fn properties(&self, schema: &Value) -> Map<String, Value> {
        let schema = self.resolve(schema);
        let mut properties = schema["properties"].as_object().cloned().unwrap_or_default();
        for part in schema["allOf"].as_array().into_iter().flatten() {
            properties.extend(self.properties(part));
        }
        properties
    }

    fn required(&self, schema: &Value) -> Vec<String> {
        let schema = self.resolve(schema);
        let own = schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap().to_owned());
        let parts = schema["allOf"].as_array().into_iter().flatten().flat_map(|part| self.required(part));
        own.chain(parts).collect()
    }

    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(reference) => self.resolve(self.schema(reference.strip_prefix("#/components/schemas/").unwrap())),
            None => schema,
        }
    }

    /// Asserts that a value is as the named schema says, with no field that the
    /// schema does not have.
    #[track_caller]
    pub fn describes(&self, name: &str, value: &Value) {
        assert!(!self.schema(name).is_null(), "the document has no schema {name}");
        let mut faults = Vec::new();
        self.compare(name, self.schema(name), value, &mut faults);
        assert!(faults.is_empty(), "{value:#} is not a {name}:\n{}", faults.join("\n"));
    }

    fn compare(&self, place: &str, schema: &Value, value: &Value, faults: &mut Vec<String>) {
        let schema = self.resolve(schema);
        if let Some(choices) = schema["oneOf"].as_array() {
            let fits = choices.iter().any(|choice| {
                let mut faults = Vec::new();
                self.compare(place, choice, value, &mut faults);
                faults.is_empty()
            });
            if !fits {
                faults.push(format!("{place}: {value} is none of {schema}"));
            }
            return;
        }
        let types: Vec<&str> = match &schema["type"] {
            Value::String(one) => vec![one],
            Value::Array(several) => several.iter().map(|one| one.as_str().unwrap()).collect(),
            _ => Vec::new(),
        };
        let is = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let fits = types.contains(&is) || is == "integer" && types.contains(&"number");
        if !types.is_empty() && !fits {
            faults.push(format!("{place}: {value} is not of the type {types:?}"));
            return;
        }
        if let Some(words) = schema["enum"].as_array()
            && !words.contains(value)
        {
            faults.push(format!("{place}: {value} is not one of {words:?}"));
        }
        if let (Some("date-time"), Some(text)) = (schema["format"].as_str(), value.as_str())
            && !(text.ends_with('Z') && chrono::DateTime::parse_from_rfc3339(text).is_ok())
        {
            faults.push(format!("{place}: {value} is not a time in UTC"));
        }
        match value {
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.compare(&format!("{place}[{index}]"), &schema["items"], item, faults);
                }
            }
            Value::Object(fields) => {
                let properties = self.properties(schema);
                if properties.is_empty() {
                    return;
                }
                for name in self.required(schema).iter().filter(|name| !fields.contains_key(*name)) {
                    faults.push(format!("{place}: the field {name} is missing"));
                }
                for (name, field) in fields {
                    match properties.get(name) {
                        Some(property) => self.compare(&format!("{place}.{name}"), property, field, faults),
                        None => faults.push(format!("{place}: the field {name} is not in the document")),
                    }
                }
            }
            _ => {}
        }
    }
}
