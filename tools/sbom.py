"""The bill of materials, in CycloneDX's JSON: the files of a release, what they were made with, and what they want at run time."""
import re
import subprocess
import tempfile
import uuid
import zipfile

import metadata


def bill(version, date, hashes, requirements, libraries):
    """hashes: {file: SHA-256}. requirements: lines of requirements_nvrtc.txt. libraries: the shared ones that ours asks for."""
    ours = f"pkg:pypi/tfuse@{version}"
    pins = [line.split("==") for line in requirements if "==" in line]
    wanted = sorted(set(re.findall(r"^Requires-Dist: ([\w-]+)", metadata.METADATA, re.MULTILINE)))
    parts = [
        *({"type": "file", "bom-ref": name, "name": name, "hashes": [{"alg": "SHA-256", "content": digest}]}
          for name, digest in sorted(hashes.items())),
        *({"type": "library", "bom-ref": f"pkg:pypi/{name}@{pin}", "purl": f"pkg:pypi/{name}@{pin}", "name": name,
           "version": pin, "scope": "excluded", "description": "Compiles device code when the wheel is built."}
          for name, pin in pins),
        *({"type": "library", "bom-ref": f"pkg:pypi/{name}", "purl": f"pkg:pypi/{name}", "name": name, "scope": "optional",
           "description": "Wanted by an extra of the wheel, which names the versions."} for name in wanted),
        *({"type": "library", "bom-ref": name, "name": name, "scope": "required",
           "description": "A shared library of the system, or of TensorFlow, that libtfuse.so is linked with."}
          for name in sorted(libraries)),
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6",
        "serialNumber": "urn:uuid:%s" % uuid.uuid5(uuid.NAMESPACE_URL, " ".join([ours, *sorted(hashes.values())])),
        "version": 1,
        "metadata": {"timestamp": date, "component": {
            "type": "library", "bom-ref": ours, "purl": ours, "name": "tfuse", "version": version,
            "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": parts,
        "dependencies": [{"ref": ours, "dependsOn": [part["bom-ref"] for part in parts if part["type"] == "library"]}],
    }


def libraries_of(path):
    """The shared libraries that a wheel's library names as NEEDED."""
    with zipfile.ZipFile(path) as archive, tempfile.NamedTemporaryFile() as file:
        file.write(archive.read("tfuse/libtfuse.so"))
        file.flush()
        shown = subprocess.run(["readelf", "--dynamic", "--wide", file.name], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", shown)
