"""Wrong files, made from the right ones by an edit; each must be found by the rule that it is for."""
