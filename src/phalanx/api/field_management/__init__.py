"""Field management: which manager owns which field, and server-side apply.

The server calls `managed_fields.py` between admission and the store.

    managed_fields.py     metadata.managedFields after a write, and server-side apply
    merge_diff.py         comparing two objects, merging a configuration, removing fields
    field_set.py          sets of field paths in the form of FieldsV1
    field_types.py        which values are owned field by field, item by item, or as a whole
"""
