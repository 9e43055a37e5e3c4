"""The machinery: finding and loading the library, calling ops on every route, telling what ran."""
