"""Updates of stored models as offers of the fleet's coordinator: stores, their triggers, and REST."""
