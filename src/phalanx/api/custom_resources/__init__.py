"""Custom resources: from a CustomResourceDefinition to kinds that are served like built-in ones.

custom_kinds.py          the Kind rows, columns and OpenAPI schemas of a definition
compiled_schemas.py      the schemas of definitions, each checked and compiled once
structural_schema.py     the strategy of a kind: pruning, defaulting, validation
schema_validation.py     validation of values by an openAPIV3Schema
workload_definitions.py  our own definitions: PodGroup, CompositePodGroup and Workload
json_path.py             JSON paths of columns, scale and selectable fields
"""
