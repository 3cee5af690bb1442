//! The DAGs that the demo dispatches, as they stand under `examples/dags/`.

/// A DAG definition of the examples.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dag {
    /// Its name.
    pub(super) name: &'static str,
    /// Its text.
    pub(super) definition: &'static str,
}

/// One customer's data, collected and handed over.
pub(super) const CUSTOMER_EXPORT: Dag =
    Dag { name: "customer-export", definition: include_str!("../../../examples/dags/customer-export.yaml") };

/// A day's orders, from the shop to the warehouse.
pub(super) const NIGHTLY_ORDERS_ETL: Dag =
    Dag { name: "nightly-orders-etl", definition: include_str!("../../../examples/dags/nightly-orders-etl.yaml") };

/// The weekly training of a forecast.
pub(super) const MODEL_TRAINING: Dag =
    Dag { name: "model-training", definition: include_str!("../../../examples/dags/model-training.yaml") };

impl Dag {
    /// How many steps the definition has: what the demo's workers count, too.
    pub(super) fn steps(self) -> usize {
        self.definition.matches(" command: ").count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_carry_their_names_and_steps() {
        for dag in [CUSTOMER_EXPORT, NIGHTLY_ORDERS_ETL, MODEL_TRAINING] {
            assert!(dag.definition.contains(&format!("\nname: {}\n", dag.name)));
            assert!((4..=5).contains(&dag.steps()));
            assert_eq!(dag.steps(), dag.definition.matches("  - id: ").count());
        }
    }
}
