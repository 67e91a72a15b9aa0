"""Common Expression Language (CEL), as custom resources and admission policies use it.

    text ─▶ parser.py ─▶ compiler.py (macros.py) ─▶ evaluator.py ─▶ a value or an error
                          ▲
            declarations.py and the libraries: which function takes which types

    library.py, strings.py, timestamps.py, kubernetes_library.py    the libraries
    values.py              the values of expressions
    schema_types.py        maps schemas to types and JSON to values
    validation_rules.py    compiles and evaluates `x-kubernetes-validations`
    admission.py           match conditions and admission policies, with their authorizer.py
    type_checking.py       checks policies against the types of kinds, from their definitions

Expressions are type-checked when they are compiled and run under a cost limit. Pure: an expression
sees its variables and nothing else.
"""
