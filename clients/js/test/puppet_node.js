// node puppet_node.js CONTROL_URL CURSOR_FILE

import { fileCursors } from "../src/node.js";
import { obey } from "./puppet.js";

obey(process.argv[2], fileCursors(process.argv[3]));
