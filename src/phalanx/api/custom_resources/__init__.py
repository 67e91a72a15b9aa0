"""Custom: kinds that users define, from a CustomResourceDefinition to a model like any other."""
